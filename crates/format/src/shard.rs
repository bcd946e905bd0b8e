//! Names of sharded files: `PREFIX-00001-of-00003.gguf`, numbered from one.
//!
//! A set is opened by its first file; the names of the others follow from it. Inside the files
//! the shards are numbered from zero.

/// The parts of a shard's file name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardName<'a> {
    /// What stands before the number.
    pub prefix: &'a str,
    /// Index of the shard, from zero.
    pub index: u64,
    /// Number of shards.
    pub count: u64,
}

impl<'a> ShardName<'a> {
    /// Takes a file name apart, `None` if it is not a shard's.
    pub fn parse(file_name: &'a str) -> Option<Self> {
        let stem = file_name.strip_suffix(".gguf")?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let (number, count) = (five_digits(number)?, five_digits(count)?);
        (1..=count).contains(&number).then(|| Self { prefix, index: number - 1, count })
    }
}

/// The file name of the shard with this index (from zero) of `count`.
pub fn shard_file_name(prefix: &str, index: u64, count: u64) -> String {
    format!("{prefix}-{:05}-of-{count:05}.gguf", index + 1)
}

fn five_digits(text: &str) -> Option<u64> {
    let digits = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        let name = shard_file_name("a-of-b", 1, 3);
        assert_eq!(name, "a-of-b-00002-of-00003.gguf");
        let parsed = ShardName { prefix: "a-of-b", index: 1, count: 3 };
        assert_eq!(ShardName::parse(&name), Some(parsed));
    }

    #[test]
    fn other_names_are_no_shards() {
        for name in [
            "model.gguf",
            "a-00001-of-00002.bin",
            "a-0001-of-00002.gguf",
            "a-+0001-of-00002.gguf",
            "a-00000-of-00002.gguf",
            "a-00003-of-00002.gguf",
            "00001-of-00002.gguf",
        ] {
            assert_eq!(ShardName::parse(name), None, "{name}");
        }
    }
}
