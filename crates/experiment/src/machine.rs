//! The machine, described: what a reader of results has to know.

use std::fs::read_to_string;

/// Name and value of each fact.
#[must_use]
pub fn describe() -> Vec<(String, String)> {
    let read = |path: &str| read_to_string(path).unwrap_or_default();
    let processors = read("/proc/cpuinfo");
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.split_once(':'));
        value.map_or("unknown".to_string(), |(_, value)| value.trim().to_string())
    };
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
