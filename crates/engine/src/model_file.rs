//! A checkpoint as model families and tokenisers ask it.

use dctms_format::{Checkpoint, GgmlType, Scalar, Value, ValueType};
use dctms_ir::Dtype;
use dctms_models::file::FLOATS_MAX;
use dctms_models::{FileTensor, ModelError, ModelFile};

/// The view of a checkpoint that the model families use.
pub struct CheckpointFile<'a>(pub &'a Checkpoint);

impl ModelFile for CheckpointFile<'_> {
    fn integer(&self, key: &str) -> Result<Option<u64>, ModelError> {
        self.0.find_u64(key).map_err(metadata)
    }

    fn float(&self, key: &str) -> Result<Option<f32>, ModelError> {
        self.0.find_f32(key).map_err(metadata)
    }

    fn text(&self, key: &str) -> Result<Option<String>, ModelError> {
        self.0.find_str(key).map(|text| text.map(str::to_string)).map_err(metadata)
    }

    fn array_len(&self, key: &str) -> Result<Option<u64>, ModelError> {
        match self.0.find(key) {
            None => Ok(None),
            Some(Value::Array(array)) => Ok(Some(array.count())),
            Some(other) => Err(ModelError::Metadata {
                message: format!("metadata {key} is {other}, expected an array"),
            }),
        }
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.0.find_bool(key).map_err(metadata)
    }

    fn floats(&self, key: &str) -> Result<Option<Vec<f32>>, ModelError> {
        let Some(array) = self.0.find_array(key, &[ValueType::F32]).map_err(metadata)? else {
            return Ok(None);
        };
        if array.count() > FLOATS_MAX {
            let message =
                format!("metadata {key} is {array}, expected at most {FLOATS_MAX} floats");
            return Err(ModelError::Metadata { message });
        }
        let mut values = Vec::new();
        self.0
            .for_each_scalar(&array, |_, scalar| {
                if let Scalar::F32(value) = scalar {
                    values.push(value);
                }
                Ok::<(), dctms_format::Error>(())
            })
            .map_err(metadata)?;
        Ok(Some(values))
    }

    fn integers(&self, key: &str) -> Result<Option<Vec<u32>>, ModelError> {
        let kinds = [ValueType::I32, ValueType::U32];
        let Some(array) = self.0.find_array(key, &kinds).map_err(metadata)? else {
            return Ok(None);
        };
        let bad = |what: &str| ModelError::Metadata {
            message: format!("metadata {key} is {array}, expected {what}"),
        };
        if array.count() > FLOATS_MAX {
            return Err(bad(&format!("at most {FLOATS_MAX} integers")));
        }
        let mut values = Vec::new();
        self.0
            .for_each_scalar(&array, |_, scalar| {
                values.push(match scalar {
                    Scalar::Signed(value) => u32::try_from(value).ok(),
                    Scalar::Unsigned(value) => u32::try_from(value).ok(),
                    Scalar::F32(_) | Scalar::F64(_) | Scalar::Bool(_) => None,
                });
                Ok::<(), dctms_format::Error>(())
            })
            .map_err(metadata)?;
        let values: Option<Vec<u32>> = values.into_iter().collect();
        values.map(Some).ok_or_else(|| bad("no integer below 0"))
    }

    fn tensor(&self, name: &str) -> Option<FileTensor> {
        let tensor = self.0.find_tensor(name)?;
        Some(FileTensor {
            name: tensor.name.to_string(),
            dtype: dtype(tensor.ggml_type),
            dims: tensor.dims.to_vec(),
            file: tensor.shard as u32,
            offset: tensor.offset,
            bytes: tensor.len_bytes,
        })
    }

    fn tensor_names(&self) -> Vec<String> {
        self.0.tensors().map(|tensor| tensor.name.to_string()).collect()
    }
}

fn metadata(error: dctms_format::Error) -> ModelError {
    ModelError::Metadata { message: error.to_string() }
}

/// The dtype of a file type, or the file type's name where there is none.
fn dtype(ggml_type: GgmlType) -> Result<Dtype, String> {
    let name = ggml_type.name().to_lowercase();
    match Dtype::from_name(&name) {
        Some(Dtype::U8 | Dtype::I32) | None => Err(ggml_type.name().to_string()),
        Some(dtype) => Ok(dtype),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supported_types_are_the_packed_ones() {
        let supported: Vec<&str> = GgmlType::ALL
            .iter()
            .filter_map(|ggml_type| dtype(*ggml_type).ok())
            .map(Dtype::name)
            .collect();
        let expected = [
            "f32", "f16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k",
            "q6_k", "bf16",
        ];
        assert_eq!(supported, expected);
    }
}
