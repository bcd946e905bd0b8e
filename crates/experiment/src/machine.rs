//! The machine, described: what a reader of results has to know.

use std::fs::read_to_string;

/// Name and value of each fact.
#[must_use]
pub fn describe() -> Vec<(String, String)> {
    let read = |path: &str| read_to_string(path).unwrap_or_default();
    let processors = read("/proc/cpuinfo");
    let field = |text: &str, name: &str| field(text, name).unwrap_or("unknown").to_string();
    let flags = field(&processors, "flags");
    let has = |flag: &str| flags.split(' ').any(|it| it == flag);
    let sets = ["avx2", "avx_vnni", "avx512f", "avx512_vnni"];
    let sets: Vec<&str> = sets.into_iter().filter(|set| has(set)).collect();
    let threads = processors.lines().filter(|line| line.starts_with("processor")).count();
    let huge = read("/sys/kernel/mm/transparent_hugepage/enabled");
    let facts = [
        ("processor", field(&processors, "model name")),
        ("processors", threads.to_string()),
        ("instruction sets", sets.join(", ")),
        ("memory", field(&read("/proc/meminfo"), "MemTotal")),
        ("swap", field(&read("/proc/meminfo"), "SwapTotal")),
        ("huge pages", huge.trim().to_string()),
        ("kernel", read("/proc/sys/kernel/osrelease").trim().to_string()),
        ("load before", read("/proc/loadavg").trim().to_string()),
    ];
    facts.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

/// Bytes of memory that the machine has; 4 GiB where it does not say.
#[must_use]
pub fn memory_bytes() -> u64 {
    let text = read_to_string("/proc/meminfo").unwrap_or_default();
    let total = field(&text, "MemTotal").and_then(|it| it.strip_suffix(" kB")?.parse::<u64>().ok());
    total.map_or(4 << 30, |kib| kib << 10)
}

/// The value of the line `name: value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim())
}
