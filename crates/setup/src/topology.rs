//! Which CPUs share a core, and which belong to a NUMA node.
//!
//! Linux describes both in `/sys/devices/system` (`Documentation/ABI/stable/sysfs-devices-system-cpu` and
//! `sysfs-devices-node`). Where a file is missing, each CPU is a core, and all belong to one node. Of other systems the
//! numbers of cores and of CPUs are known, and the CPUs of a core are taken to have numbers that follow each other.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use crate::cpu_set::CpuSet;

/// The CPUs that this process may use, by cores and nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    cpus: CpuSet,
    /// The CPUs of each core.
    cores: Vec<CpuSet>,
    /// The CPUs of each node, of which there is at least one.
    nodes: Vec<CpuSet>,
}

impl Topology {
    /// That of this machine, read once.
    pub fn current() -> &'static Self {
        static CURRENT: OnceLock<Topology> = OnceLock::new();
        CURRENT.get_or_init(|| {
            if !cfg!(target_os = "linux") {
                let cpus = std::thread::available_parallelism().map_or(1, usize::from);
                return Self::of_counts(cpus, num_cpus::get(), num_cpus::get_physical());
            }
            let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
            let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            let all = || (0..std::thread::available_parallelism().map_or(1, usize::from)).collect();
            let allowed = allowed.and_then(|list| list.parse().ok()).filter(|allowed: &CpuSet| !allowed.is_empty());
            Self::of(Path::new("/sys/devices/system"), allowed.unwrap_or_else(all))
        })
    }

    /// That of the CPUs `cpus` as the tree under `system` describes them.
    fn of(system: &Path, cpus: CpuSet) -> Self {
        let list = |path: &Path| -> Option<CpuSet> { fs::read_to_string(path).ok()?.parse().ok() };
        let mut cores: Vec<CpuSet> = Vec::new();
        for cpu in cpus.iter() {
            if cores.iter().any(|core| core.contains(cpu)) {
                continue;
            }
            let siblings = list(&system.join(format!("cpu/cpu{cpu}/topology/thread_siblings_list")));
            let core = siblings.map(|siblings| siblings.and(&cpus)).filter(|core| core.contains(cpu));
            cores.push(core.unwrap_or_else(|| [cpu].into_iter().collect()));
        }
        let entries = fs::read_dir(system.join("node")).into_iter().flatten().flatten();
        let numbers: BTreeSet<usize> =
            entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()).collect();
        let of_node = |node: usize| list(&system.join(format!("node/node{node}/cpulist")));
        // A node may have memory and no CPU.
        let nodes = numbers.into_iter().filter_map(|node| Some(of_node(node)?.and(&cpus)));
        let mut nodes: Vec<CpuSet> = nodes.filter(|node| !node.is_empty()).collect();
        if nodes.iter().map(CpuSet::len).sum::<usize>() != cpus.len() {
            nodes = vec![cpus.clone()];
        }
        Self { cpus, cores, nodes }
    }

    /// `usable` CPUs of a machine with `cpus`, which has `cores` cores.
    fn of_counts(usable: usize, cpus: usize, cores: usize) -> Self {
        let per_core = (cpus / cores.max(1)).max(1);
        let all: Vec<usize> = (0..usable).collect();
        let cores = all.chunks(per_core).map(|core| core.iter().copied().collect()).collect();
        let cpus: CpuSet = all.into_iter().collect();
        Self { nodes: vec![cpus.clone()], cpus, cores }
    }

    /// Nodes whose CPUs are cores.
    #[cfg(test)]
    pub fn of_nodes(lists: &[&str]) -> Self {
        let nodes: Vec<CpuSet> = lists.iter().map(|list| list.parse().unwrap()).collect();
        let cpus: CpuSet = nodes.iter().flat_map(CpuSet::iter).collect();
        let cores = cpus.iter().map(|cpu| [cpu].into_iter().collect()).collect();
        Self { cpus, cores, nodes }
    }

    /// The number of cores.
    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// The number of cores of which a set has a CPU.
    pub fn cores_of(&self, cpus: &CpuSet) -> usize {
        self.cores.iter().filter(|core| !core.and(cpus).is_empty()).count()
    }

    /// The CPUs of each NUMA node.
    pub fn nodes(&self) -> &[CpuSet] {
        &self.nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree with the siblings of each CPU and the CPUs of each node.
    fn tree(siblings: &[&str], nodes: &[(usize, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: String, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        };
        for (cpu, list) in siblings.iter().enumerate() {
            write(format!("cpu/cpu{cpu}/topology/thread_siblings_list"), list);
        }
        for (node, list) in nodes {
            write(format!("node/node{node}/cpulist"), list);
        }
        folder
    }

    fn read(siblings: &[&str], nodes: &[(usize, &str)], cpus: &str) -> (usize, Vec<String>, Vec<usize>) {
        let found = Topology::of(tree(siblings, nodes).path(), cpus.parse().unwrap());
        let cores = found.nodes().iter().map(|node| found.cores_of(node)).collect();
        (found.cores(), found.nodes().iter().map(CpuSet::to_string).collect(), cores)
    }

    /// Two nodes with two cores of two threads, numbered as Linux numbers them: second threads come last.
    const SIBLINGS: [&str; 8] = ["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"];
    const NODES: [(usize, &str); 2] = [(0, "0-1,4-5"), (1, "2-3,6-7")];

    #[test]
    fn cores_are_counted_where_only_numbers_are_known() {
        for (usable, cpus, cores, expected) in [(16, 16, 8, 8), (8, 8, 8, 8), (3, 16, 8, 2), (4, 4, 0, 1), (4, 2, 8, 4)]
        {
            let found = Topology::of_counts(usable, cpus, cores);
            assert_eq!((found.cores(), found.nodes().len()), (expected, 1), "{usable} of {cpus}, {cores}");
            assert_eq!((found.cpus.len(), found.cores_of(&found.nodes()[0])), (usable, expected));
        }
    }

    #[test]
    fn cores_and_nodes_are_counted() {
        let found = read(&SIBLINGS, &NODES, "0-7");
        assert_eq!(found, (4, vec!["0-1,4-5".into(), "2-3,6-7".into()], vec![2, 2]));
    }

    #[test]
    fn only_allowed_cpus_count() {
        assert_eq!(read(&SIBLINGS, &NODES, "1,2,5,6"), (2, vec!["1,5".into(), "2,6".into()], vec![1, 1]));
        assert_eq!(read(&SIBLINGS, &NODES, "4-5"), (2, vec!["4-5".into()], vec![2]));
    }

    #[test]
    fn a_node_without_cpus_has_no_engine() {
        let found = read(&["0", "1"], &[(0, "0-1"), (1, "")], "0-1");
        assert_eq!(found, (2, vec!["0-1".into()], vec![2]));
    }

    #[test]
    fn without_files_each_cpu_is_a_core_of_one_node() {
        assert_eq!(read(&[], &[], "0-2"), (3, vec!["0-2".into()], vec![3]));
        assert_eq!(read(&["x", "0"], &[(0, "0")], "0-1"), (2, vec!["0-1".into()], vec![2]));
    }

    #[test]
    fn this_machine_has_a_core_and_a_node() {
        let found = Topology::current();
        assert!((1..=found.cpus.len()).contains(&found.cores()) && !found.nodes().is_empty());
    }
}
