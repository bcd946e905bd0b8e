//! Asks a checkpoint everything that it can be asked: shared by the mutation test and the fuzz
//! target. It panics where an answer contradicts what the crate promises.

use dctms_format::limits::{ARRAY_COUNT_MAX, FILE_LEN_BYTES_MAX};
use dctms_format::{ArrayRef, Checkpoint, Error, Source, Value, ValueType};

/// Opens bytes as a file and, if they are taken, asks.
pub fn open_and_ask(bytes: Vec<u8>) -> Result<Checkpoint, Error> {
    let source: Box<dyn Source> = Box::new(bytes);
    let result = Checkpoint::from_sources([("m.gguf".to_string(), source)]);
    match &result {
        Ok(checkpoint) => ask(checkpoint),
        Err(error) => {
            assert!(!error.to_string().chars().any(char::is_control), "{error:?}");
        }
    }
    result
}

/// Asks.
pub fn ask(checkpoint: &Checkpoint) {
    ask_metadata(checkpoint);
    ask_tensors(checkpoint);
    assert_eq!(checkpoint.file_complete(), checkpoint.require_complete().is_ok());
    assert!(checkpoint.header_len_bytes(0) <= checkpoint.source(0).len());
    let rows = checkpoint.histogram();
    let counted: u64 = rows.iter().map(|row| row.tensor_count).sum();
    assert_eq!(counted, checkpoint.tensor_count() as u64);
}

fn ask_metadata(checkpoint: &Checkpoint) {
    for (key, value_type, value) in checkpoint.metadata() {
        assert!(!value.to_string().chars().any(char::is_control));
        assert_eq!(checkpoint.find(key).map(|found| found.to_string()), Some(value.to_string()));
        let _ = (checkpoint.get_u32(key), checkpoint.get_u64(key), checkpoint.get_f32(key));
        let _ = (checkpoint.get_bool(key), checkpoint.get_str(key), checkpoint.read_string(key));
        assert!(checkpoint.find_array(key, &[]).is_err());
        if let Value::Array(array) = value {
            assert_eq!(value_type, ValueType::Array);
            ask_array(checkpoint, &array);
        }
    }
}

fn ask_array(checkpoint: &Checkpoint, array: &ArrayRef) {
    assert!(array.count() <= ARRAY_COUNT_MAX);
    assert!(array.offset() + array.len_bytes() <= checkpoint.header_len_bytes(0));
    match array.element_type() {
        ValueType::Array => {}
        ValueType::String => {
            let mut window = vec![0; array.string_len_bytes_max() as usize + 8];
            let mut reader = checkpoint.strings(array, &mut window);
            let (mut count, mut total, mut longest) = (0, 0, 0);
            while let Some(string) = reader.next_string().expect("was walked before") {
                count += 1;
                total += string.len() as u64;
                longest = longest.max(string.len() as u64);
            }
            assert_eq!((count, total), (array.count(), array.string_len_bytes_total()));
            assert_eq!(longest, array.string_len_bytes_max());
        }
        _ => {
            let mut window = [0; 16];
            let mut reader = checkpoint.scalars(array, &mut window);
            // Ends with the last one, or at a truth value that is none.
            while let Ok(Some(_)) = reader.next_scalar() {}
        }
    }
}

fn ask_tensors(checkpoint: &Checkpoint) {
    for tensor in checkpoint.tensors() {
        assert_eq!(checkpoint.find_tensor(tensor.name), Some(tensor));
        assert_eq!(tensor.offset % checkpoint.alignment(), 0);
        assert!(tensor.offset >= checkpoint.data_offset(0));
        assert!(tensor.offset + tensor.len_bytes <= FILE_LEN_BYTES_MAX);
        assert_eq!(tensor.ggml_type.tensor_len_bytes(tensor.dims), Some(tensor.len_bytes));
        assert!(tensor.dims.iter().all(|&dim| dim > 0));
        let mut buffer = [0; 16];
        let len = tensor.len_bytes.min(16) as usize;
        let start = tensor.len_bytes - len as u64;
        let read = checkpoint.read_tensor(&tensor, start, &mut buffer[..len]);
        let inside = tensor.offset + tensor.len_bytes <= checkpoint.source(0).len();
        assert_eq!(read.is_ok(), inside);
    }
    let mut ranges: Vec<_> =
        checkpoint.tensors().map(|tensor| (tensor.offset, tensor.len_bytes)).collect();
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
}
