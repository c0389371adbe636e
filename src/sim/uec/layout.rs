//! The switches and links of one plane as numbers, and which links lead to a host.

use super::topo::{Tier, Topology};

/// Numbers of one plane. Switches are counted leaves first, then the tier above them, then the cores.
///
/// Links come in this order: host to leaf by host, leaf to host by host, leaf to above by (leaf, port), second tier
/// to leaf by (switch, leaf, parallel link), second tier to core by (switch, port), core to pod by (core, pod,
/// parallel link).
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) hosts: u32,
    pub(super) leaves: u32,
    pub(super) middles: u32,
    pub(super) cores: u32,
    pods: u32,
    leaves_per_pod: u32,
    middles_per_pod: u32,
    hosts_per_leaf: u32,
    up: [u32; 2],
    bundle: [u32; 2],
    /// Where each kind of link begins; the last is their number.
    base: [u32; 6],
    leaf_of: Vec<u32>,
    pod_of_leaf: Vec<u32>,
}

/// One direction of one link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wire {
    /// The switch that sends; `None` for a host.
    pub(super) from: Option<u32>,
    /// The switch that receives; `None` for a host.
    pub(super) to: Option<u32>,
    /// The host at its end, if it has one.
    pub(super) host: Option<u32>,
    /// The tier below which it is.
    pub(super) tier: u8,
}

impl Layout {
    pub(super) fn new(t: &Topology) -> Layout {
        let three = t.tiers.len() == 3;
        let leaves = t.switches(0);
        let middles = t.switches(1);
        let cores = if three { t.switches(2) } else { 0 };
        let pods = t.pods();
        let up = [t.tiers[0].up, t.tiers[1].up];
        let bundle = [t.tiers[0].bundle, t.tiers[1].bundle];
        let leaves_per_pod = leaves / pods;
        let counts = [t.hosts, t.hosts, leaves * up[0], middles * leaves_per_pod * bundle[0], middles * up[1]];
        let mut base = [0; 6];
        for (i, n) in counts.into_iter().enumerate() {
            base[i + 1] = base[i] + n;
        }
        let total = base[5] + cores * pods * bundle[1];
        let hosts_per_leaf = t.tiers[0].down;
        Layout {
            hosts: t.hosts,
            leaves,
            middles,
            cores,
            pods,
            leaves_per_pod,
            middles_per_pod: middles / pods,
            hosts_per_leaf,
            up,
            bundle,
            base: [base[1], base[2], base[3], base[4], base[5], total],
            leaf_of: (0..t.hosts).map(|h| h / hosts_per_leaf).collect(),
            pod_of_leaf: (0..leaves).map(|l| l / leaves_per_pod).collect(),
        }
    }

    /// Links of the plane.
    pub(super) fn links(&self) -> u32 {
        self.base[5]
    }

    /// Switches of the top tier.
    pub(super) fn spines(&self) -> u32 {
        if self.cores > 0 { self.cores } else { self.middles }
    }

    /// The tier of a switch.
    pub(super) fn tier(&self, switch: u32, t: &Topology) -> Tier {
        let above = usize::from(switch >= self.leaves) + usize::from(switch >= self.leaves + self.middles);
        t.tiers[above]
    }

    pub(super) fn hosts_per_leaf(&self) -> u32 {
        self.hosts_per_leaf
    }

    /// From a host to its leaf.
    pub(super) fn host_up(&self, host: u32) -> u32 {
        host
    }

    /// From its leaf to a host.
    pub(super) fn host_down(&self, host: u32) -> u32 {
        self.base[0] + host
    }

    /// The link of a leaf's port upwards, and the one that comes back; `None` if there is no such port.
    pub(super) fn leaf_link(&self, leaf: u32, port: u32) -> Option<[u32; 2]> {
        if leaf >= self.leaves || port >= self.up[0] {
            return None;
        }
        let above = self.above_leaf(leaf, port);
        let down = self.base[2]
            + (above * self.leaves_per_pod + leaf % self.leaves_per_pod) * self.bundle[0]
            + port % self.bundle[0];
        Some([self.base[1] + leaf * self.up[0] + port, down])
    }

    /// The link of a second-tier switch's port upwards, and the one that comes back.
    pub(super) fn middle_link(&self, middle: u32, port: u32) -> Option<[u32; 2]> {
        if middle >= self.middles || port >= self.up[1] {
            return None;
        }
        let core = self.above_middle(middle, port);
        let pod = middle / self.middles_per_pod;
        let down = self.base[4] + (core * self.pods + pod) * self.bundle[1] + port % self.bundle[1];
        Some([self.base[3] + middle * self.up[1] + port, down])
    }

    fn above_leaf(&self, leaf: u32, port: u32) -> u32 {
        self.pod_of_leaf[leaf as usize] * self.middles_per_pod + port / self.bundle[0]
    }

    fn above_middle(&self, middle: u32, port: u32) -> u32 {
        middle % self.middles_per_pod * (self.up[1] / self.bundle[1]) + port / self.bundle[1]
    }

    /// The links by which a switch sends towards a host: the first and how many follow each other.
    #[inline]
    pub(super) fn route(&self, switch: u32, host: u32) -> (u32, u32) {
        let leaf = self.leaf_of[host as usize];
        if switch < self.leaves {
            return if leaf == switch {
                (self.base[0] + host, 1)
            } else {
                (self.base[1] + switch * self.up[0], self.up[0])
            };
        }
        let middle = switch - self.leaves;
        if middle >= self.middles {
            let core = middle - self.middles;
            let pod = self.pod_of_leaf[leaf as usize];
            return (self.base[4] + (core * self.pods + pod) * self.bundle[1], self.bundle[1]);
        }
        let below = if self.pods == 1 {
            leaf
        } else {
            let pod = self.pod_of_leaf[leaf as usize];
            if pod != middle / self.middles_per_pod {
                return (self.base[3] + middle * self.up[1], self.up[1]);
            }
            leaf - pod * self.leaves_per_pod
        };
        (self.base[2] + (middle * self.leaves_per_pod + below) * self.bundle[0], self.bundle[0])
    }

    /// What a link joins.
    pub(super) fn wire(&self, link: u32) -> Wire {
        let [hosts, leaf_up, leaf_down, middle_up, core_down, _] = self.base;
        let wire = |from, to, host, tier| Wire { from, to, host, tier };
        if link < hosts {
            wire(None, Some(self.leaf_of[link as usize]), Some(link), 0)
        } else if link < leaf_up {
            let host = link - hosts;
            wire(Some(self.leaf_of[host as usize]), None, Some(host), 0)
        } else if link < leaf_down {
            let (leaf, port) = ((link - leaf_up) / self.up[0], (link - leaf_up) % self.up[0]);
            wire(Some(leaf), Some(self.leaves + self.above_leaf(leaf, port)), None, 1)
        } else if link < middle_up {
            let n = (link - leaf_down) / self.bundle[0];
            let (middle, below) = (n / self.leaves_per_pod, n % self.leaves_per_pod);
            let pod = middle / self.middles_per_pod;
            wire(Some(self.leaves + middle), Some(pod * self.leaves_per_pod + below), None, 1)
        } else if link < core_down {
            let (middle, port) = ((link - middle_up) / self.up[1], (link - middle_up) % self.up[1]);
            let core = self.leaves + self.middles + self.above_middle(middle, port);
            wire(Some(self.leaves + middle), Some(core), None, 2)
        } else {
            let n = (link - core_down) / self.bundle[1];
            let (core, pod) = (n / self.pods, n % self.pods);
            let middle = pod * self.middles_per_pod + core / (self.up[1] / self.bundle[1]);
            wire(Some(self.leaves + self.middles + core), Some(self.leaves + middle), None, 2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(text: &str) -> Topology {
        Topology::parse(text).expect("a good file")
    }

    /// Follows every choice from every host to a few others.
    fn all_arrive(t: &Topology) {
        let layout = Layout::new(t);
        for (from, to) in [(0, 1), (0, t.hosts - 1), (t.hosts - 1, 0), (t.hosts / 2, t.hosts / 2 - 1)] {
            let mut links = vec![layout.host_up(from)];
            let mut hops = 0;
            while layout.wire(links[0]).to.is_some() {
                assert!(hops < 6, "a loop");
                hops += 1;
                let mut next = Vec::new();
                for l in links {
                    let at = layout.wire(l).to.expect("a switch");
                    let (first, n) = layout.route(at, to);
                    next.extend(first..first + n);
                    assert!((first..first + n).all(|l| layout.wire(l).from == Some(at)));
                }
                links = next;
            }
            assert!(links.iter().all(|&l| layout.wire(l).host == Some(to)), "{from} to {to}");
            let far = if t.leaf(from) == t.leaf(to) { 1 } else { t.longest() - 1 };
            assert_eq!(hops, far);
        }
    }

    #[test]
    fn every_choice_leads_to_the_host() {
        all_arrive(&topology(include_str!("../../../tests/fabric/ls128_400g.topo")));
        all_arrive(&topology(include_str!("../../../tests/fabric/ft1024_400g.topo")));
        let bundled = "Nodes 8\nTiers 2\nTier 0\nDownlink_speed_Gbps 1\nRadix_Down 4\nRadix_Up 4\nBundle 2\n\
                       Downlink_Latency_ns 1\nSwitch_Latency_ns 1\nTier 1\nDownlink_speed_Gbps 1\nRadix_Down 4\n\
                       Downlink_Latency_ns 1\nSwitch_Latency_ns 1\n";
        all_arrive(&topology(bundled));
    }

    #[test]
    fn links_come_back() {
        for text in [
            include_str!("../../../tests/fabric/ls128_400g.topo"),
            include_str!("../../../tests/fabric/ft1024_400g.topo"),
        ] {
            let t = topology(text);
            let layout = Layout::new(&t);
            let mut seen = vec![false; layout.links() as usize];
            let mut pair = |[up, down]: [u32; 2]| {
                let (u, d) = (layout.wire(up), layout.wire(down));
                assert_eq!((u.from, u.to), (d.to, d.from));
                assert!(!std::mem::replace(&mut seen[up as usize], true));
                assert!(!std::mem::replace(&mut seen[down as usize], true));
            };
            for h in 0..t.hosts {
                pair([layout.host_up(h), layout.host_down(h)]);
            }
            for leaf in 0..layout.leaves {
                (0..t.tiers[0].up).for_each(|p| pair(layout.leaf_link(leaf, p).expect("a port")));
            }
            for middle in 0..layout.middles {
                (0..t.tiers[1].up).for_each(|p| pair(layout.middle_link(middle, p).expect("a port")));
            }
            assert!(seen.into_iter().all(|s| s));
            assert_eq!(layout.leaf_link(0, t.tiers[0].up), None);
        }
    }
}
