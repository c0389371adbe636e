//! Reads `.topo` files: leaf-and-spine fabrics and three-tier fat trees.

use std::fmt;

use thiserror::Error;

/// Switches and links of one plane.
#[derive(Clone, PartialEq, Debug)]
pub struct Topology {
    /// Hosts.
    pub hosts: u32,
    /// Hosts of a pod; all of them if there are two tiers.
    pub pod: u32,
    /// The tiers of switches from the hosts upwards: 2 or 3.
    pub tiers: Vec<Tier>,
}

/// One tier of switches.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tier {
    /// Gb/s of the links below this tier.
    pub gbps: u32,
    /// Ports downwards of each switch.
    pub down: u32,
    /// Ports upwards of each switch; 0 at the top.
    pub up: u32,
    /// Parallel links from each switch of this tier to each one above that it reaches.
    pub bundle: u32,
    /// Nanoseconds that the links below this tier take.
    pub link_ns: u32,
    /// Nanoseconds that a packet takes through a switch of this tier.
    pub switch_ns: u32,
}

/// Why a `.topo` file was refused.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("line {line}: {what}")]
pub struct TopologyError {
    /// The line, counted from 1; the last one if something is missing.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

/// A tier as it is read.
#[derive(Clone, Copy, Default)]
struct Draft {
    gbps: Option<u32>,
    down: Option<u32>,
    up: Option<u32>,
    oversubscribed: Option<u32>,
    bundle: Option<u32>,
    link_ns: Option<u32>,
    switch_ns: Option<u32>,
}

/// Hosts, switches per tier and links that make sense; more is taken for a slip of the pen.
const MOST: u32 = 1 << 20;

impl Topology {
    /// Reads the text of a `.topo` file.
    ///
    /// Keywords come first on their lines, in any case, and `#` begins a comment. Speeds and latencies of a tier are
    /// those of the links *below* it. `Queue_Down` and `Queue_Up` are read and ignored, as queues are sized by the
    /// bandwidth-delay product.
    ///
    /// # Errors
    ///
    /// Unknown or repeated keywords, numbers that are none, and switches whose ports do not fit together.
    pub fn parse(text: &str) -> Result<Topology, TopologyError> {
        let (mut nodes, mut count, mut pod) = (None, None, None);
        let mut drafts: Vec<Draft> = Vec::new();
        let mut last = 1;
        for (at, raw) in text.lines().enumerate() {
            let line = at + 1;
            last = line;
            let fail = |what: String| Err(TopologyError { line, what });
            let words: Vec<&str> = raw.split('#').next().unwrap_or("").split_whitespace().collect();
            let (key, value) = match words[..] {
                [] => continue,
                [key, value] => (key.to_ascii_lowercase(), value),
                _ => return fail(format!("`{}` is not a keyword and one value", raw.trim())),
            };
            let Ok(number) = value.parse::<u32>() else {
                return fail(format!("`{value}` of `{}` is not a whole number below 2^32", words[0]));
            };
            let slot = match (key.as_str(), drafts.last_mut()) {
                ("nodes", None) => &mut nodes,
                ("tiers", None) => &mut count,
                ("podsize", None) => &mut pod,
                ("nodes" | "tiers" | "podsize", Some(_)) => return fail(format!("`{}` comes after a tier", words[0])),
                ("tier", _) => {
                    if number as usize != drafts.len() {
                        return fail(format!("tier {number} comes where tier {} is expected", drafts.len()));
                    }
                    drafts.push(Draft::default());
                    continue;
                }
                (_, None) => return fail(format!("`{}` comes before any `Tier`", words[0])),
                ("downlink_speed_gbps", Some(d)) => &mut d.gbps,
                ("radix_down", Some(d)) => &mut d.down,
                ("radix_up", Some(d)) => &mut d.up,
                ("oversubscribed", Some(d)) => &mut d.oversubscribed,
                ("bundle", Some(d)) => &mut d.bundle,
                ("downlink_latency_ns", Some(d)) => &mut d.link_ns,
                ("switch_latency_ns", Some(d)) => &mut d.switch_ns,
                ("queue_down" | "queue_up", Some(_)) => continue,
                _ => return fail(format!("`{}` is not a keyword", words[0])),
            };
            if slot.replace(number).is_some() {
                return fail(format!("`{}` is given twice", words[0]));
            }
        }
        build(nodes, count, pod, &drafts).map_err(|what| TopologyError { line: last, what })
    }

    /// Switches of a tier.
    pub fn switches(&self, tier: usize) -> u32 {
        let t = &self.tiers;
        match (tier, t.len()) {
            (0, _) => self.hosts / t[0].down,
            (1, 2) => t[0].up / t[0].bundle,
            (1, _) => self.pods() * (t[0].up / t[0].bundle),
            _ => t[0].up / t[0].bundle * (t[1].up / t[1].bundle),
        }
    }

    /// Pods; 1 if there are two tiers.
    pub fn pods(&self) -> u32 {
        self.hosts / self.pod
    }

    /// The leaf (top-of-rack switch) of a host.
    pub fn leaf(&self, host: u32) -> u32 {
        host / self.tiers[0].down
    }

    /// Gb/s of a host's port.
    pub fn host_gbps(&self) -> u32 {
        self.tiers[0].gbps
    }

    /// Links that a packet takes between hosts that are furthest apart.
    pub fn longest(&self) -> u32 {
        2 * self.tiers.len() as u32
    }

    /// Nanoseconds from host to host on the longest way, without the time that sending takes.
    pub fn latency_ns(&self) -> u64 {
        let links: u64 = self.tiers.iter().map(|t| u64::from(t.link_ns)).sum();
        let (top, lower) = self.tiers.split_last().expect("at least two tiers");
        2 * links + 2 * lower.iter().map(|t| u64::from(t.switch_ns)).sum::<u64>() + u64::from(top.switch_ns)
    }
}

fn build(nodes: Option<u32>, count: Option<u32>, pod: Option<u32>, drafts: &[Draft]) -> Result<Topology, String> {
    let need = |value: Option<u32>, name: &str| value.ok_or_else(|| format!("`{name}` is missing"));
    let hosts = need(nodes, "Nodes")?;
    let count = need(count, "Tiers")? as usize;
    if count != 2 && count != 3 {
        return Err(format!("{count} tiers: only 2 (leaf and spine) and 3 (fat tree) are simulated"));
    }
    if drafts.len() != count {
        return Err(format!("`Tiers {count}`, but {} tiers are described", drafts.len()));
    }
    let pod = if count == 2 { pod.unwrap_or(hosts) } else { need(pod, "Podsize")? };
    let mut tiers = Vec::new();
    for (i, d) in drafts.iter().enumerate() {
        let top = i + 1 == count;
        let need = |value: Option<u32>, name: &str| value.ok_or_else(|| format!("`{name}` of tier {i} is missing"));
        let up = if top { d.up.unwrap_or(0) } else { need(d.up, "Radix_Up")? };
        let tier = Tier {
            gbps: need(d.gbps, "Downlink_speed_Gbps")?,
            down: need(d.down, "Radix_Down")?,
            up,
            bundle: d.bundle.unwrap_or(1),
            link_ns: need(d.link_ns, "Downlink_Latency_ns")?,
            switch_ns: need(d.switch_ns, "Switch_Latency_ns")?,
        };
        if top && up != 0 {
            return Err(format!("tier {i} is the top and has `Radix_Up {up}`"));
        }
        let least = tier.gbps.min(tier.down).min(tier.bundle);
        if least == 0 || (!top && up == 0) {
            return Err(format!("tier {i} has a speed, radix or bundle of 0"));
        }
        if !top && !up.is_multiple_of(tier.bundle) {
            return Err(format!("`Radix_Up {up}` of tier {i} is not a multiple of `Bundle {}`", tier.bundle));
        }
        if let Some(stated) = d.oversubscribed
            && (top || stated != tier.down / up)
        {
            return Err(format!("`Oversubscribed {stated}` of tier {i} is not Radix_Down / Radix_Up"));
        }
        tiers.push(tier);
    }
    let topology = Topology { hosts, pod, tiers };
    fits(&topology)?;
    Ok(topology)
}

/// True if every port has a counterpart.
fn fits(t: &Topology) -> Result<(), String> {
    if t.hosts == 0 || t.hosts > MOST || t.tiers.iter().any(|tier| tier.down > MOST || tier.up > MOST) {
        return Err(format!("between 1 and {MOST} hosts and ports are simulated"));
    }
    if t.pod == 0 || !t.hosts.is_multiple_of(t.pod) {
        return Err(format!("`Nodes {}` is not a multiple of `Podsize {}`", t.hosts, t.pod));
    }
    if t.tiers.len() == 2 && t.pod != t.hosts {
        return Err(format!("with two tiers there is one pod, but `Podsize` is {} and `Nodes` {}", t.pod, t.hosts));
    }
    if !t.pod.is_multiple_of(t.tiers[0].down) {
        return Err(format!("`Podsize {}` is not a multiple of the leaves' `Radix_Down {}`", t.pod, t.tiers[0].down));
    }
    let leaves = t.pod / t.tiers[0].down;
    let expect = |tier: usize, down: u32| {
        let is = t.tiers[tier].down;
        if is == down {
            Ok(())
        } else {
            Err(format!("`Radix_Down` of tier {tier} is {is}, but {down} links arrive there"))
        }
    };
    expect(1, leaves * t.tiers[0].bundle)?;
    if t.tiers.len() == 3 {
        expect(2, t.pods() * t.tiers[1].bundle)?;
    }
    Ok(())
}

impl fmt::Display for Topology {
    /// The text that [`Topology::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Nodes {}\nTiers {}\nPodsize {}", self.hosts, self.tiers.len(), self.pod)?;
        for (i, t) in self.tiers.iter().enumerate() {
            writeln!(f, "\nTier {i}\nDownlink_speed_Gbps {}\nRadix_Down {}", t.gbps, t.down)?;
            if i + 1 < self.tiers.len() {
                writeln!(f, "Radix_Up {}\nBundle {}", t.up, t.bundle)?;
            }
            writeln!(f, "Downlink_Latency_ns {}\nSwitch_Latency_ns {}", t.link_ns, t.switch_ns)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF_SPINE: &str = include_str!("../../../tests/fabric/ls128_400g.topo");
    const FAT_TREE: &str = include_str!("../../../tests/fabric/ft1024_400g.topo");

    #[test]
    fn leaf_and_spine_and_fat_tree_are_read() {
        let t = Topology::parse(LEAF_SPINE).expect("a good file");
        assert_eq!((t.hosts, t.switches(0), t.switches(1), t.longest()), (128, 8, 16, 4));
        assert_eq!(t.latency_ns(), 3500, "four links and three switches of 500 ns");
        assert_eq!((t.leaf(15), t.leaf(16), t.host_gbps()), (0, 1, 400));
        let t = Topology::parse(FAT_TREE).expect("a good file");
        assert_eq!((t.pods(), t.switches(0), t.switches(1), t.switches(2)), (16, 128, 128, 64));
        assert_eq!(t.latency_ns(), 5500);
        assert_eq!(Topology::parse(&t.to_string()), Ok(t));
    }

    #[test]
    fn case_comments_and_bundles() {
        let text = "nodes 8 # hosts\nTIERS 2\n\nTier 0\nDownlink_speed_Gbps 100\nradix_down 4\nRadix_Up 4\nBundle 2\n\
                    Oversubscribed 1\nQueue_Down 100\nDownlink_Latency_ns 10\nSwitch_Latency_ns 20\nTier 1\n\
                    Downlink_speed_Gbps 200\nRadix_Down 4\nDownlink_Latency_ns 30\nSwitch_Latency_ns 40";
        let t = Topology::parse(text).expect("a good file");
        assert_eq!((t.switches(0), t.switches(1), t.tiers[0].bundle, t.pod), (2, 2, 2, 8));
        assert_eq!(t.latency_ns(), 2 * 40 + 2 * 20 + 40);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_reason() {
        let with = |from: &str, to: &str| {
            let text = LEAF_SPINE.replacen(from, to, 1);
            assert_ne!(text, LEAF_SPINE);
            Topology::parse(&text).expect_err("a bad file").to_string()
        };
        assert_eq!(
            with("Tiers 2", "Tiers 4"),
            "line 16: 4 tiers: only 2 (leaf and spine) and 3 (fat tree) are simulated"
        );
        assert_eq!(with("Nodes 128", "Nodes many"), "line 1: `many` of `Nodes` is not a whole number below 2^32");
        assert_eq!(with("Tier 1", "Tier 2"), "line 12: tier 2 comes where tier 1 is expected");
        assert_eq!(
            with("Radix_Down 8", "Radix_Down 9"),
            "line 16: `Radix_Down` of tier 1 is 9, but 8 links arrive there"
        );
        assert_eq!(with("Podsize 128", "Podsize 100"), "line 16: `Nodes 128` is not a multiple of `Podsize 100`");
        assert_eq!(with("Radix_Up 16", "Radix_Across 16"), "line 8: `Radix_Across` is not a keyword");
        assert_eq!(with("Radix_Up 16", "Radix_Down 16"), "line 8: `Radix_Down` is given twice");
        assert_eq!(with("Radix_Up 16\n", ""), "line 15: `Radix_Up` of tier 0 is missing");
        assert_eq!(with("Radix_Up 16", "Radix_Up 0"), "line 16: tier 0 has a speed, radix or bundle of 0");
        assert_eq!(with("Radix_Up 16", "Radix_Up 16 17"), "line 8: `Radix_Up 16 17` is not a keyword and one value");
        assert_eq!(with("Podsize 128", "Radix_Up 1"), "line 3: `Radix_Up` comes before any `Tier`");
        assert_eq!(
            with("Radix_Up 16", "Radix_Up 16\nOversubscribed 4"),
            "line 17: `Oversubscribed 4` of tier 0 is not Radix_Down / Radix_Up"
        );
    }
}
