//! The devices of one run: an engine on each.

use std::fmt;
use std::str::FromStr;

use kiln_ops::device::gpus;
use kiln_weights::SharedSlabs;

use crate::cpu_set::CpuSet;
use crate::error::{Error, Result};
use crate::portable;
use crate::second_device::{Parallel, SecondDevice};
use crate::setup::{DeviceChoice, Setup};
use crate::threads::count;
use crate::topology::Topology;

/// The devices of a run, as a user names them: one, several, or all GPUs of the machine.
///
/// The CPU may occur several times: its threads are then divided among the engines. A GPU occurs once, since it runs one
/// engine's work at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceList(Named);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Named {
    /// All GPUs with CUDA, else all of any vendor; the CPU if there is none.
    All,
    /// At least one.
    These(Vec<DeviceChoice>),
    /// The CPU, with an engine for each NUMA node.
    Nodes,
}

impl Default for DeviceList {
    fn default() -> Self {
        Self::from(DeviceChoice::Auto)
    }
}

impl From<DeviceChoice> for DeviceList {
    fn from(device: DeviceChoice) -> Self {
        Self(Named::These(vec![device]))
    }
}

impl FromStr for DeviceList {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        const EXPECTED: &str =
            "expected auto, cpu, cuda, cuda:N, gpu, vulkan, metal, dx12, all, or a list as in cuda:0,cuda:1";
        if text == "all" {
            return Ok(Self(Named::All));
        }
        let devices = text.split(',').map(str::parse).collect::<std::result::Result<Vec<DeviceChoice>, _>>();
        let devices = devices.map_err(|_| EXPECTED.to_string())?;
        for (i, device) in devices.iter().enumerate() {
            match device {
                DeviceChoice::Auto if devices.len() > 1 => {
                    return Err(format!("{EXPECTED}; auto is one device, which a list names itself"));
                }
                DeviceChoice::Cuda(number) if devices[..i].contains(device) => {
                    return Err(format!("cuda:{number} is named twice, expected each GPU once"));
                }
                DeviceChoice::Portable(named) if devices[..i].contains(device) => {
                    return Err(format!("{named} is named twice, expected each GPU once"));
                }
                _ => {}
            }
        }
        Ok(Self(Named::These(devices)))
    }
}

impl fmt::Display for DeviceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Named::All => f.write_str("all"),
            Named::Nodes => f.write_str("cpu"),
            Named::These(devices) => {
                let names: Vec<String> = devices.iter().map(DeviceChoice::to_string).collect();
                f.write_str(&names.join(","))
            }
        }
    }
}

impl DeviceList {
    /// The device of a run with one engine; `None` where several are named.
    pub fn one(&self) -> Option<DeviceChoice> {
        match &self.0 {
            Named::These(devices) if devices.len() == 1 => devices.first().copied(),
            _ => None,
        }
    }

    /// The CPU with an engine for each NUMA node, whose threads and memory stay in the node, in place of one engine on the CPU.
    ///
    /// # Errors
    /// [`kiln_request::Error::Value`] where this list has several devices or a GPU.
    pub fn per_node(&self) -> Result<Self> {
        match self.one() {
            Some(DeviceChoice::Auto | DeviceChoice::Cpu) => Ok(Self(Named::Nodes)),
            _ => {
                let expected = "cpu: `per_node` makes an engine for each NUMA node of the CPU".into();
                Err(kiln_request::Error::Value { name: "device", found: self.to_string(), expected }.into())
            }
        }
    }

    /// The setups of the engines, one for each device, which differ from `setup` in the device alone if there is one.
    /// Several have the weights in host memory in common.
    /// Engines on the CPU share its threads (`setup.threads`, or those of the process) and its memory.
    ///
    /// # Errors
    /// [`Error::Device`] if all GPUs are requested and CUDA cannot list them.
    pub fn setups(&self, setup: &Setup) -> Result<Vec<Setup>> {
        if self.0 == Named::Nodes {
            return Ok(of_nodes(setup, Topology::current()));
        }
        let devices = self.devices()?;
        let on_cpu = devices.iter().filter(|device| **device == DeviceChoice::Cpu).count();
        let shared = (devices.len() > 1).then(SharedSlabs::default);
        let mut number = 0;
        let of_device = |device: DeviceChoice| {
            let mut setup = Setup { device, shared: shared.clone(), ..setup.clone() };
            if device == DeviceChoice::Cpu && on_cpu > 1 {
                let all = setup.threads.unwrap_or_else(rayon::current_num_threads);
                setup.threads = Some(part(all, number, on_cpu));
                setup.memory.shared_by = on_cpu;
                number += 1;
            }
            setup
        };
        Ok(devices.into_iter().map(of_device).collect())
    }

    /// The setup of one engine whose guided steps two devices share: the first has all networks, the second the U-Net and the
    /// control networks. It differs from `setup` in the devices alone; on the CPU twice, both share its threads.
    ///
    /// # Errors
    /// [`kiln_request::Error::Value`] unless the list has two devices of one kind, and those of [`Self::setups`].
    pub fn parallel_cfg(&self, setup: &Setup) -> Result<Setup> {
        let devices = self.devices()?;
        let expected = |more: &str| {
            let expected = format!("two GPUs for `parallel` {}, as in cuda:0,cuda:1{more}", Parallel::Cfg);
            kiln_request::Error::Value { name: "device", found: self.to_string(), expected }
        };
        let [first, second] = devices[..] else {
            let count = match devices.len() {
                0 | 1 => String::new(),
                count => format!(" (these are {count})"),
            };
            return Err(expected(&count).into());
        };
        let mut setup = Setup { device: first, ..setup.clone() };
        setup.second = Some(SecondDevice { device: second, threads: None });
        match [first, second] {
            [DeviceChoice::Cuda(_), DeviceChoice::Cuda(_)] => Ok(setup),
            [DeviceChoice::Cpu, DeviceChoice::Cpu] => {
                let all = setup.threads.unwrap_or_else(rayon::current_num_threads);
                setup.threads = Some(part(all, 0, 2));
                setup.second = Some(SecondDevice { device: second, threads: Some(part(all, 1, 2)) });
                Ok(setup)
            }
            _ => Err(expected(" (a GPU and the CPU do not share a step)").into()),
        }
    }

    /// The devices by name.
    fn devices(&self) -> Result<Vec<DeviceChoice>> {
        match &self.0 {
            Named::These(devices) => Ok(devices.clone()),
            Named::Nodes => Ok(vec![DeviceChoice::Cpu]),
            Named::All => match gpus() {
                Ok(found) if !found.gpus.is_empty() => {
                    Ok(found.gpus.iter().map(|gpu| DeviceChoice::Cuda(gpu.ordinal)).collect())
                }
                Ok(_) => Ok(without_cuda("no GPU with CUDA was found")),
                Err(error) if error.is_without_driver() => Ok(without_cuda(&error.to_string())),
                Err(error) => Err(Error::Device(format!("`device` all: {error}"))),
            },
        }
    }
}

/// All GPUs of any vendor, or the CPU for `reason`.
fn without_cuda(reason: &str) -> Vec<DeviceChoice> {
    let found = portable::hardware();
    if found.is_empty() {
        tracing::info!("running on the CPU: {reason}, and no GPU of another vendor");
        return vec![DeviceChoice::Cpu];
    }
    found.into_iter().map(DeviceChoice::Portable).collect()
}

/// The setups of engines on the NUMA nodes of the CPU. Each has weights of its own, so that no engine reads them from another
/// node.
fn of_nodes(setup: &Setup, topology: &Topology) -> Vec<Setup> {
    let nodes = topology.nodes();
    let (usual, n) = (count(None), nodes.len());
    let of_node = |(i, cpus): (usize, &CpuSet)| {
        let threads = match setup.threads {
            Some(all) => part(all, i, n),
            None => topology.cores_of(cpus).min(part(usual, i, n).max(usual.div_ceil(n))),
        };
        let mut setup = Setup { device: DeviceChoice::Cpu, threads: Some(threads), ..setup.clone() };
        setup.cpus = Some(cpus.clone());
        setup.memory.shared_by = n;
        setup
    };
    nodes.iter().enumerate().map(of_node).collect()
}

/// Part `i` of `n` parts of `all` threads that differ by at most one; at least one thread.
fn part(all: usize, i: usize, n: usize) -> usize {
    (all / n + usize::from(i < all % n)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setups(list: &str, threads: usize) -> Vec<(DeviceChoice, Option<usize>, usize)> {
        let setup = Setup { threads: Some(threads), ..Setup::default() };
        let setups = list.parse::<DeviceList>().unwrap().setups(&setup).unwrap();
        setups.into_iter().map(|setup| (setup.device, setup.threads, setup.memory.shared_by)).collect()
    }

    #[test]
    fn engines_on_the_cpu_share_its_threads() {
        use DeviceChoice::{Cpu, Cuda};
        assert_eq!(setups("cpu", 5), [(Cpu, Some(5), 1)]);
        assert_eq!(setups("cpu,cpu", 5), [(Cpu, Some(3), 2), (Cpu, Some(2), 2)]);
        assert_eq!(setups("cpu,cpu,cpu", 2), [(Cpu, Some(1), 3); 3]);
        assert_eq!(setups("cuda:1,cpu", 5), [(Cuda(1), Some(5), 1), (Cpu, Some(5), 1)]);
        let process = DeviceList::default().setups(&Setup::default()).unwrap();
        assert_eq!(process, [Setup::default()]);
    }

    #[test]
    fn each_node_has_an_engine() {
        use DeviceChoice::Cpu;
        let nodes = |threads| {
            let topology = Topology::of_nodes(&["0-1,4-5", "2-3,6-7"]);
            let setups = of_nodes(&Setup { threads, ..Setup::default() }, &topology);
            let shown =
                |setup: Setup| (setup.device, setup.threads, setup.cpus.unwrap().to_string(), setup.memory.shared_by);
            setups.into_iter().map(shown).collect::<Vec<_>>()
        };
        let expected = |threads: [usize; 2]| {
            vec![(Cpu, Some(threads[0]), "0-1,4-5".to_string(), 2), (Cpu, Some(threads[1]), "2-3,6-7".to_string(), 2)]
        };
        assert_eq!(nodes(Some(5)), expected([3, 2]));
        let usual = count(None).div_ceil(2).min(4);
        assert_eq!(nodes(None), expected([usual; 2]));
        let list = |text: &str| text.parse::<DeviceList>().unwrap().per_node();
        assert_eq!(list("cpu").unwrap().to_string(), "cpu");
        assert!(list("cuda:1").unwrap_err().to_string().contains("cuda:1"));
        assert!(list("cpu,cpu").is_err() && list("all").is_err());
        let here = list("cpu").unwrap().setups(&Setup::default()).unwrap();
        assert_eq!(here.len(), Topology::current().nodes().len());
    }

    #[test]
    fn lists_are_read_and_shown() {
        let list = |text: &str| text.parse::<DeviceList>();
        for text in ["auto", "cpu", "cuda:0,cuda:1", "cuda:3,cpu,cpu", "vulkan:1,gpu:0", "all"] {
            assert_eq!(list(text).unwrap().to_string(), text);
        }
        assert_eq!((list("cuda").unwrap().one(), list("cpu,cpu").unwrap().one()), (Some(DeviceChoice::Cuda(0)), None));
        assert!(list("cuda,cuda:0").unwrap_err().contains("cuda:0 is named twice"));
        assert!(list("auto,cpu").unwrap_err().contains("auto is one device"));
        for text in ["", "cpu,", "gpu:", "opencl", "cuda:x", "all,cpu"] {
            assert!(list(text).unwrap_err().starts_with("expected auto, cpu, cuda"), "{text}");
        }
    }
}
