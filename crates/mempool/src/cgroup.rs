//! Memory limits of the control groups that a Linux process is in, as containers and batch systems set them.
//!
//! Both hierarchies are read: version 1 (`memory.limit_in_bytes`) and version 2 (`memory.max`, `memory.high`), each
//! for the process's own group and all groups above it that are mounted. The files are described in the kernel's
//! `Documentation/admin-guide/cgroup-v1/memory.rst` and `cgroup-v2.rst`.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// The memory that the groups of a process leave it, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CgroupMemory {
    /// The least limit of all groups.
    pub(crate) limit: u64,
    /// The least of each limit minus what its group uses.
    pub(crate) available: u64,
}

/// The names of one hierarchy's files.
struct Files {
    limits: &'static [&'static str],
    usage: &'static str,
    /// The key in `memory.stat` of cached files that nothing used recently.
    inactive_file: &'static str,
}

const V1: Files =
    Files { limits: &["memory.limit_in_bytes"], usage: "memory.usage_in_bytes", inactive_file: "total_inactive_file" };
/// Above `memory.high` a process is not killed, but is slowed down until it hardly runs.
const V2: Files =
    Files { limits: &["memory.max", "memory.high"], usage: "memory.current", inactive_file: "inactive_file" };

/// The limits for this process below the root `root`, which is `/` but in tests; `None` where no group has one.
pub(crate) fn memory(root: &Path) -> Option<CgroupMemory> {
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_default();
    let (groups, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
    let mounts: Vec<Mount> = mounts.lines().filter_map(Mount::parse).collect();
    let mut least: Option<CgroupMemory> = None;
    for line in groups.lines() {
        // ID:CONTROLLERS:PATH, without controllers for version 2.
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (files, wanted): (&Files, fn(&Mount) -> bool) = match controllers {
            "" => (&V2, |mount| mount.kind == "cgroup2"),
            list if list.split(',').any(|controller| controller == "memory") => (&V1, Mount::is_memory),
            _ => continue,
        };
        for folder in folders(mounts.iter().filter(|mount| wanted(mount)), Path::new(path)) {
            let here = root.join(folder.strip_prefix("/").unwrap_or(&folder));
            let Some(found) = files.read(&here) else { continue };
            least = Some(least.map_or(found, |least| CgroupMemory {
                limit: least.limit.min(found.limit),
                available: least.available.min(found.available),
            }));
        }
    }
    least
}

impl Files {
    /// The memory that the group in `folder` leaves; `None` if it has no limit.
    fn read(&self, folder: &Path) -> Option<CgroupMemory> {
        let text = |name: &str| fs::read_to_string(folder.join(name)).ok();
        let number = |name: &str| text(name)?.trim().parse::<u64>().ok(); // `max` is no number
        let limit = self.limits.iter().filter_map(|name| number(name)).min()?;
        // Cached files count as use, but those that nothing used recently are given up before anything is killed.
        // kubelet and Docker subtract the same.
        let stat = text("memory.stat").unwrap_or_default();
        let inactive = stat.lines().find_map(|line| line.strip_prefix(self.inactive_file)?.trim().parse().ok());
        let used = number(self.usage).unwrap_or(0).saturating_sub(inactive.unwrap_or(0));
        Some(CgroupMemory { limit, available: limit.saturating_sub(used) })
    }
}

/// One line of `mountinfo`.
struct Mount {
    /// The group that is mounted.
    group: PathBuf,
    /// Where.
    folder: PathBuf,
    kind: String,
    options: String,
}

impl Mount {
    /// `ID PARENT MAJOR:MINOR ROOT FOLDER OPTIONS [FIELDS..] - TYPE SOURCE SUPER_OPTIONS` (proc(5)).
    fn parse(line: &str) -> Option<Self> {
        let (place, kind) = line.split_once(" - ")?;
        let (mut place, mut kind) = (place.split(' ').skip(3), kind.split(' '));
        Some(Self {
            group: unescape(place.next()?).into(),
            folder: unescape(place.next()?).into(),
            kind: kind.next()?.into(),
            options: kind.nth(1).unwrap_or_default().into(),
        })
    }

    /// Whether this is the hierarchy of version 1 that limits memory.
    fn is_memory(&self) -> bool {
        self.kind == "cgroup" && self.options.split(',').any(|option| option == "memory")
    }
}

/// The folders of the group `path` and of those above it, as far up as they are mounted. In a container the mounted
/// group may be another one than the host's path names: its folder stands for the process's own then.
fn folders<'a>(mounts: impl Iterator<Item = &'a Mount>, path: &Path) -> Vec<PathBuf> {
    let mounts: Vec<&Mount> = mounts.collect();
    let below = |mount: &Mount| {
        let below = path.strip_prefix(&mount.group).ok()?;
        let plain = below.components().all(|part| matches!(part, Component::Normal(_)));
        plain.then(|| below.to_path_buf())
    };
    let found = mounts.iter().find_map(|mount| Some((*mount, below(mount)?)));
    let Some((mount, below)) = found.or_else(|| Some((*mounts.first()?, PathBuf::new()))) else { return Vec::new() };
    below.ancestors().map(|group| mount.folder.join(group)).collect()
}

/// Spaces, tabs, line ends and backslashes are `\` and three octal digits in `mountinfo`.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (code, part.get(3..)) {
            (Some(code), Some(rest)) if code.is_ascii() => {
                plain.push(char::from(code));
                plain += rest;
            }
            _ => {
                plain.push('\\');
                plain += part;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A folder with these files, as the kernel would show them below `/`.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    const HYBRID: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw
";

    #[test]
    fn a_limit_of_version_1_counts_without_files_that_nothing_used_recently() {
        let root = root(&[
            ("proc/self/cgroup", "4:memory:/box\n1:cpu:/\n0::/\n"),
            ("proc/self/mountinfo", HYBRID),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "2000000000\n"),
            ("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "94371840\n"),
            ("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "52428800\n"),
            // The group's own figure leaves out the groups below it; `total_` is what counts.
            ("sys/fs/cgroup/memory/box/memory.stat", "cache 1\ninactive_file 4096\ntotal_inactive_file 31457280\n"),
        ]);
        assert_eq!(memory(root.path()), Some(CgroupMemory { limit: 90 * MIB, available: 70 * MIB }));
    }

    #[test]
    fn the_least_of_nested_groups_counts() {
        let root = root(&[
            ("proc/self/cgroup", "0::/slice/job/step\n"),
            ("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"),
            ("sys/fs/cgroup/slice/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/slice/memory.current", "1048576000\n"),
            ("sys/fs/cgroup/slice/memory.stat", "anon 5\ninactive_file 0\n"),
            ("sys/fs/cgroup/slice/job/memory.max", "max\n"),
            ("sys/fs/cgroup/slice/job/memory.high", "536870912\n"),
            ("sys/fs/cgroup/slice/job/memory.current", "104857600\n"),
            ("sys/fs/cgroup/slice/job/step/memory.max", "max\n"),
        ]);
        // The limit is the job's, the least memory is left in the slice.
        assert_eq!(memory(root.path()), Some(CgroupMemory { limit: 512 * MIB, available: 24 * MIB }));
    }

    #[test]
    fn a_containers_mount_is_its_own_group() {
        // Docker on version 1 shows the host's path and mounts the container's group.
        let mounted = "9 8 0:3 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let limit = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "104857600");
        let found = Some(CgroupMemory { limit: 100 * MIB, available: 100 * MIB });
        for group in ["/docker/abc", "/kubepods/pod1/abc", "/../outside"] {
            let group = format!("7:hugetlb,memory:{group}\n");
            let root = root(&[("proc/self/cgroup", &group), ("proc/self/mountinfo", mounted), limit]);
            assert_eq!(memory(root.path()), found, "{group}");
        }
        let below = root(&[
            ("proc/self/cgroup", "7:memory:/docker/abc/in ner\n"),
            ("proc/self/mountinfo", "9 8 0:3 /docker/abc /cgroup\\040one ro - cgroup cgroup rw,memory\n"),
            ("cgroup one/in ner/memory.limit_in_bytes", "104857600"),
        ]);
        assert_eq!(memory(below.path()), found);
    }

    #[test]
    fn without_groups_or_limits_there_is_none() {
        assert_eq!(memory(root(&[]).path()), None);
        let nothing = [
            ("proc/self/cgroup", "0::/\n4:memory:/x\nnonsense\n:\n"),
            ("proc/self/mountinfo", "1 2\n - cgroup2\n1 2 3 / /sys/fs/cgroup rw - cgroup2 cgroup2\n"),
            ("sys/fs/cgroup/memory.max", "max\n"),
        ];
        assert_eq!(memory(root(&nothing).path()), None);
    }
}
