//! Memory and processor limits from fixture directories that stand for machines.

use dctms_system::machine::{MachineMemory, MemorySource, machine_memory, machine_memory_under};
use dctms_system::processors::{processors, quota_thousandths_under};
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A machine of 16 GiB with 10 GiB available, and the files that a test adds.
struct Machine(PathBuf);

impl Machine {
    fn new(name: &str, files: &[(&str, &str)]) -> Machine {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&root);
        let machine = Machine(root);
        machine.add("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 10485760 kB\n");
        files.iter().for_each(|(path, text)| machine.add(path, text));
        machine
    }

    fn add(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn memory(&self) -> (u64, &'static str, u64) {
        let MachineMemory { limit_bytes, source, available_bytes } =
            machine_memory_under(&self.0).unwrap();
        (limit_bytes, source.name(), available_bytes)
    }
}

const V2_MOUNT: (&str, &str) = (
    "proc/self/mountinfo",
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
);
const V2_GROUP: (&str, &str) = ("proc/self/cgroup", "0::/user.slice/app.scope/leaf\n");
const V1_MOUNT: (&str, &str) = (
    "proc/self/mountinfo",
    "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
     35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
);
const V1_GROUP: (&str, &str) = ("proc/self/cgroup", "4:memory:/a/b\n2:cpu,cpuacct:/a\n0::/\n");

#[test]
fn without_groups_the_machine_is_the_limit() {
    let machine = Machine::new("none", &[]);
    assert_eq!(machine.memory(), (16 * GIB, "meminfo", 10 * GIB));
    assert_eq!(quota_thousandths_under(&machine.0), None);
}

#[test]
fn a_machine_that_states_nothing_is_an_error() {
    let machine = Machine::new("nothing", &[]);
    machine.add("proc/meminfo", "");
    assert!(machine_memory_under(&machine.0).is_err());
}

#[test]
fn v2_takes_the_least_ancestor_and_ignores_max() {
    let machine = Machine::new(
        "v2-nested",
        &[
            V2_MOUNT,
            V2_GROUP,
            ("sys/fs/cgroup/user.slice/memory.max", "4294967296\n"),
            ("sys/fs/cgroup/user.slice/memory.current", "3221225472\n"),
            ("sys/fs/cgroup/user.slice/memory.stat", "anon 1\nactive_file 1073741824\nfile 9\n"),
            ("sys/fs/cgroup/user.slice/app.scope/memory.max", "8589934592\n"),
            ("sys/fs/cgroup/user.slice/app.scope/leaf/memory.max", "max\n"),
        ],
    );
    assert_eq!(machine.memory(), (4 * GIB, "cgroup-v2", 2 * GIB));
}

#[test]
fn v2_max_everywhere_leaves_the_machine() {
    let machine = Machine::new(
        "v2-max",
        &[V2_MOUNT, V2_GROUP, ("sys/fs/cgroup/user.slice/app.scope/leaf/memory.max", "max\n")],
    );
    assert_eq!(machine.memory(), (16 * GIB, "meminfo", 10 * GIB));
}

#[test]
fn v2_in_a_container_reads_the_mount_itself() {
    for (name, group) in [("v2-ns", "0::/\n"), ("v2-outside", "0::/../../other\n")] {
        let machine = Machine::new(
            name,
            &[V2_MOUNT, ("proc/self/cgroup", group), ("sys/fs/cgroup/memory.max", "1048576\n")],
        );
        assert_eq!(machine.memory(), (MIB, "cgroup-v2", MIB));
    }
}

#[test]
fn page_cache_is_not_used_memory() {
    let machine = Machine::new(
        "v2-cache",
        &[
            V2_MOUNT,
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/memory.current", "1073741824\n"),
            (
                "sys/fs/cgroup/memory.stat",
                "anon 104857600\nfile 968884224\ninactive_file 900000000\nactive_file 68884224\n",
            ),
        ],
    );
    assert_eq!(machine.memory(), (GIB, "cgroup-v2", GIB - 104_857_600));
}

#[test]
fn v1_takes_the_least_ancestor_and_ignores_the_sentinel() {
    let sentinel = "9223372036854771712\n";
    let machine = Machine::new(
        "v1",
        &[
            V1_MOUNT,
            V1_GROUP,
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", sentinel),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "2147483648\n"),
            ("sys/fs/cgroup/memory/a/memory.use_hierarchy", "1\n"),
            ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1610612736\n"),
            ("sys/fs/cgroup/memory/a/memory.stat", "cache 9\ntotal_inactive_file 536870912\n"),
            ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", sentinel),
        ],
    );
    assert_eq!(machine.memory(), (2 * GIB, "cgroup-v1", GIB));
    machine.add("sys/fs/cgroup/memory/a/memory.use_hierarchy", "0\n");
    assert_eq!(machine.memory(), (16 * GIB, "meminfo", 10 * GIB), "a does not count its children");
}

#[test]
fn v1_in_a_container_strips_what_the_mount_shows() {
    let mount = "35 31 0:32 /docker/x /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
    for (name, group) in [
        ("v1-docker", "4:memory:/docker/x\n"),
        ("v1-docker-child", "4:memory:/docker/x/child\n"),
        ("v1-docker-other", "4:memory:/docker/xy\n"),
    ] {
        let machine = Machine::new(
            name,
            &[
                ("proc/self/mountinfo", mount),
                ("proc/self/cgroup", group),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "3145728\n"),
                ("sys/fs/cgroup/memory/child/memory.limit_in_bytes", "9223372036854771712\n"),
            ],
        );
        assert_eq!(machine.memory(), (3 * MIB, "cgroup-v1", 3 * MIB));
    }
}

#[test]
fn hybrid_hierarchies_are_both_read() {
    let mounts = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                  41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    let machine = Machine::new(
        "hybrid",
        &[
            ("proc/self/mountinfo", mounts),
            ("proc/self/cgroup", "4:memory:/a\n0::/a\n"),
            ("sys/fs/cgroup/unified/a/cgroup.procs", ""),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5242880\n"),
        ],
    );
    assert_eq!(machine.memory(), (5 * MIB, "cgroup-v1", 5 * MIB));
}

#[test]
fn a_limit_over_the_machine_is_the_machine() {
    let machine = Machine::new(
        "v2-large",
        &[
            V2_MOUNT,
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "1099511627776\n"),
        ],
    );
    assert_eq!(machine.memory(), (16 * GIB, "meminfo", 10 * GIB));
}

#[test]
fn quotas_of_both_versions_are_found() {
    let v2 = Machine::new(
        "cpu-v2",
        &[
            V2_MOUNT,
            V2_GROUP,
            ("sys/fs/cgroup/user.slice/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/user.slice/app.scope/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/user.slice/app.scope/leaf/cpu.max", "400000 100000\n"),
        ],
    );
    assert_eq!(quota_thousandths_under(&v2.0), Some(1500));
    let v1 = Machine::new(
        "cpu-v1",
        &[
            V1_MOUNT,
            V1_GROUP,
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n"),
        ],
    );
    assert_eq!(quota_thousandths_under(&v1.0), Some(500));
}

#[test]
fn this_machine_has_memory_and_processors() {
    let memory = machine_memory().unwrap();
    assert!(memory.limit_bytes > MIB && memory.available_bytes <= memory.limit_bytes);
    let named = ["cgroup-v2", "cgroup-v1", "meminfo"].contains(&memory.source.name());
    assert!(named && MemorySource::CgroupV2.name() == "cgroup-v2");
    assert!(processors().unwrap().default_lanes() >= 1);
}
