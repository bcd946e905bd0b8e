//! A GGUF file taken apart so that tests can spoil one thing of it, and put together again.
//!
//! A reader and writer of its own, that trusts its input (files which we made): the product's
//! reader is what is under test.

use std::path::Path;

/// A file in parts.
#[derive(Clone, Default)]
pub struct Gguf {
    /// Keys with their values' bytes, type number included.
    pub metadata: Vec<(String, Vec<u8>)>,
    /// Tensors in file order.
    pub tensors: Vec<Tensor>,
}

/// A tensor.
#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub dims: Vec<u64>,
    pub kind: u32,
    pub data: Vec<u8>,
}

/// Alignment of data, which these files do not change.
const ALIGNMENT: usize = 32;

impl Gguf {
    /// Reads a file that we made.
    pub fn read(path: &Path) -> Gguf {
        let bytes = std::fs::read(path).expect("a fixture");
        let mut at = Cursor { bytes: &bytes, at: 8 };
        let (tensors, entries) = (at.u64(), at.u64());
        let metadata = (0..entries)
            .map(|_| {
                let key = at.string();
                let start = at.at;
                let kind = at.u32();
                at.skip_value(kind);
                (key, bytes[start..at.at].to_vec())
            })
            .collect();
        let heads: Vec<(Tensor, usize)> = (0..tensors)
            .map(|_| {
                let name = at.string();
                let rank = at.u32();
                let dims = (0..rank).map(|_| at.u64()).collect();
                let kind = at.u32();
                (Tensor { name, dims, kind, data: Vec::new() }, at.u64() as usize)
            })
            .collect();
        let start = at.at.next_multiple_of(ALIGNMENT);
        let mut ends: Vec<usize> = heads.iter().map(|(_, offset)| *offset).collect();
        ends.push(bytes.len() - start);
        ends.sort_unstable();
        let tensors = heads.into_iter().map(|(mut tensor, offset)| {
            let end = ends.iter().copied().find(|end| *end > offset).unwrap_or(offset);
            tensor.data = bytes[start + offset..start + end].to_vec();
            tensor
        });
        Gguf { metadata, tensors: tensors.collect() }
    }

    /// Sets an entry to a value's bytes, type number included.
    pub fn set(mut self, key: &str, value: Vec<u8>) -> Gguf {
        self.metadata.retain(|(other, _)| other != key);
        self.metadata.push((key.to_string(), value));
        self
    }

    /// Sets a 32-bit number.
    pub fn set_u32(self, key: &str, value: u32) -> Gguf {
        self.set(key, [4u32.to_le_bytes(), value.to_le_bytes()].concat())
    }

    /// Sets a text.
    pub fn set_text(self, key: &str, value: &str) -> Gguf {
        let head = [&8u32.to_le_bytes()[..], &(value.len() as u64).to_le_bytes()].concat();
        self.set(key, [&head[..], value.as_bytes()].concat())
    }

    /// Removes entries that begin so.
    pub fn without(mut self, prefix: &str) -> Gguf {
        self.metadata.retain(|(key, _)| !key.starts_with(prefix));
        self
    }

    /// Changes the tensor of a name.
    #[track_caller]
    pub fn tensor(mut self, name: &str, change: impl FnOnce(&mut Tensor)) -> Gguf {
        let found = self.tensors.iter_mut().find(|tensor| tensor.name == name);
        change(found.expect("a tensor of that name"));
        self
    }

    /// The file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_string(&mut out, key);
            out.extend(value);
        }
        let mut offset = 0usize;
        for tensor in &self.tensors {
            put_string(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset = (offset + tensor.data.len()).next_multiple_of(ALIGNMENT);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
            out.extend(&tensor.data);
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out
    }

    /// Bytes before the tensors' data.
    pub fn header_len_bytes(&self) -> usize {
        let data: usize =
            self.tensors.iter().map(|t| t.data.len().next_multiple_of(ALIGNMENT)).sum();
        self.bytes().len() - data
    }
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn take(&mut self, count: usize) -> &[u8] {
        self.at += count;
        &self.bytes[self.at - count..self.at]
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().expect("4 bytes"))
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().expect("8 bytes"))
    }

    fn string(&mut self) -> String {
        let len = self.u64() as usize;
        String::from_utf8(self.take(len).to_vec()).expect("UTF-8")
    }

    fn skip_value(&mut self, kind: u32) {
        match kind {
            0 | 1 | 7 => self.at += 1,
            2 | 3 => self.at += 2,
            4..=6 => self.at += 4,
            10..=12 => self.at += 8,
            8 => self.at += self.u64() as usize,
            9 => {
                let (kind, count) = (self.u32(), self.u64());
                (0..count).for_each(|_| self.skip_value(kind));
            }
            other => panic!("value type {other}"),
        }
    }
}

/// Bytes of a header by hand.
#[derive(Clone, Default)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    /// Magic, version 3 and the two counts.
    pub fn header(tensors: u64, entries: u64) -> Bytes {
        Bytes(b"GGUF".to_vec()).u32(3).u64(tensors).u64(entries)
    }

    pub fn raw(mut self, bytes: &[u8]) -> Bytes {
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn u32(self, value: u32) -> Bytes {
        self.raw(&value.to_le_bytes())
    }

    pub fn u64(self, value: u64) -> Bytes {
        self.raw(&value.to_le_bytes())
    }

    pub fn string(self, text: &str) -> Bytes {
        self.u64(text.len() as u64).raw(text.as_bytes())
    }

    /// A tensor table entry.
    pub fn tensor(self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Bytes {
        let start = self.string(name).u32(dims.len() as u32);
        dims.iter().fold(start, |bytes, &dim| bytes.u64(dim)).u32(kind).u64(offset)
    }
}
