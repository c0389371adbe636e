//! Scenario files: what docs/simulation.md describes, as TOML, and the run that a seed makes of one.

use serde::Deserialize;

use super::faults::{self, Fault};
use super::plan::{Measure, Message, Plan, Ratio, Stream, Want};
use super::units::{Bytes, Rate, When};
use super::world::{PlaneShape, Shape};
use crate::class::Class;
use crate::sim::Switches;
use crate::spray::SessionConfig;
use crate::time::{Span, Time};

/// Most planes, messages and faults of a file.
const PLANES: usize = 8;
const MESSAGES: u64 = 100_000;
const CHANNELS: u32 = 64;
/// Longest message, in bytes.
const LONGEST: u64 = 4 << 20;

/// A scenario file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(default)]
    ends: Ends,
    plane: Vec<Planes>,
    #[serde(default)]
    traffic: Vec<Traffic>,
    #[serde(default)]
    fault: Vec<Fault>,
    #[serde(default)]
    expect: Expect,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Ends {
    lanes: u16,
    silence: When,
    session_timeout: When,
    rebuild: bool,
    late: When,
    slow_fence: When,
    open_windows: bool,
    max_window: Bytes,
}

impl Default for Ends {
    fn default() -> Self {
        let config = SessionConfig::default();
        Ends {
            lanes: 2,
            silence: config.silence.into(),
            session_timeout: config.session_timeout.into(),
            rebuild: true,
            late: Span::from_micros(5).into(),
            slow_fence: Span::ZERO.into(),
            open_windows: false,
            max_window: Bytes::of(config.max_window.into()),
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Planes {
    #[serde(default = "one")]
    count: usize,
    #[serde(default)]
    rate: Option<Rate>,
    #[serde(default)]
    path_rate: Option<Rate>,
    #[serde(default)]
    paths: Option<u16>,
    #[serde(default)]
    delay: Option<When>,
    #[serde(default)]
    queue: Option<Bytes>,
    #[serde(default)]
    mark: Option<Bytes>,
    #[serde(default = "mtu")]
    mtu: u32,
}

const fn one() -> usize {
    1
}

const fn mtu() -> u32 {
    1024
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Named {
    Latency,
    Steady,
    #[default]
    Bulk,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Traffic {
    from: usize,
    #[serde(default)]
    class: Named,
    #[serde(default)]
    channel: u32,
    size: Bytes,
    #[serde(default)]
    eager: bool,
    #[serde(default)]
    at: When,
    /// One after the other, so many at once.
    #[serde(default)]
    at_once: Option<usize>,
    #[serde(default)]
    until: Option<When>,
    /// Or so many, so far apart.
    #[serde(default)]
    count: Option<u64>,
    #[serde(default)]
    every: When,
    /// How much later the receive is posted.
    #[serde(default)]
    receive_after: When,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Expect {
    limit: Option<When>,
    settle: Option<When>,
    slowest: Option<When>,
    lanes_lost: Option<u64>,
    all_back: bool,
    may_end: bool,
    ratio: Vec<Compared>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Compared {
    of: Of,
    #[serde(default)]
    plane: u8,
    between: [When; 2],
    before: [When; 2],
    least: f64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Of {
    Goodput,
    Share,
    OtherLanes,
}

impl File {
    /// Reads a file, and looks whether its parts fit together.
    pub(super) fn parse(text: &str) -> Result<File, String> {
        let file: File = toml::from_str(text).map_err(|e| e.to_string().trim_end().to_owned())?;
        let planes: usize = file.plane.iter().map(|p| p.count).fold(0, usize::saturating_add);
        if !(1..=PLANES).contains(&planes) {
            return Err(format!("{planes} planes: there are 1 to {PLANES}"));
        }
        if !(1..=16).contains(&file.ends.lanes) {
            return Err(format!("ends.lanes = {}: there are 1 to 16 for each plane and class", file.ends.lanes));
        }
        for p in &file.plane {
            if !matches!(p.mtu, 256 | 512 | 1024 | 2048 | 4096) {
                return Err(format!("plane.mtu = {}: it is 256, 512, 1024, 2048 or 4096", p.mtu));
            }
            let needs = p.path_rate.is_some() || p.paths.is_some() || p.queue.is_some() || p.mark.is_some();
            if p.rate.is_none() && (needs || p.delay.is_some()) {
                return Err("a plane with paths, a delay, a queue or marks needs a rate".into());
            }
            if p.paths.is_some_and(|n| !(1..=64).contains(&n)) {
                return Err("plane.paths: there are 1 to 64".into());
            }
        }
        for t in &file.traffic {
            if t.from > 1 || t.channel >= CHANNELS {
                return Err(format!("traffic: from is 0 or 1, and channel is below {CHANNELS}"));
            }
            if t.size.most() > LONGEST {
                return Err(format!("traffic.size: at most {LONGEST} bytes"));
            }
            match (t.at_once, t.until, t.count) {
                (Some(1..=256), Some(_), None) | (None, None, Some(1..=MESSAGES)) => {}
                _ => {
                    let what = "either at_once (1 to 256) and until, or count (1 to 100000), is needed";
                    return Err(format!("traffic: {what}"));
                }
            }
        }
        for fault in &file.fault {
            faults::check(fault, planes as u8, usize::from(file.ends.lanes), |p| file.switches(p).is_some())?;
        }
        for r in &file.expect.ratio {
            let plane = usize::from(r.plane);
            if plane >= planes || !(0.0..=100.0).contains(&r.least) {
                return Err("expect.ratio: there is no such plane, or least is not between 0 and 100".into());
            }
        }
        Ok(file)
    }

    fn switches(&self, plane: u8) -> Option<Switches> {
        let p = self.plane.iter().flat_map(|p| std::iter::repeat_n(p, p.count)).nth(plane.into())?;
        let rate = p.rate?;
        let queue = p.queue.map_or(256 << 10, Bytes::most);
        Some(Switches {
            paths: p.paths.unwrap_or(1),
            port_rate: rate.bits(),
            path_rate: p.path_rate.unwrap_or(rate).bits(),
            delay: p.delay.map_or(Span::from_micros(10), When::first),
            queue,
            mark: p.mark.map_or((queue / 4, queue / 2), Bytes::range),
        })
    }

    /// The run of a seed: it decides where the file leaves a choice.
    pub(super) fn plan(&self, seed: u64) -> Plan {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0xf11e << 40);
        let ends = &self.ends;
        let planes: Vec<PlaneShape> = (0..)
            .zip(self.plane.iter().flat_map(|p| std::iter::repeat_n(p, p.count)))
            .map(|(i, p)| PlaneShape { switches: self.switches(i), mtu: p.mtu })
            .collect();
        let shape = Shape {
            seed,
            planes,
            data: ends.lanes,
            plain: ends.open_windows,
            sloth: ends.late.pick(&mut rng),
            slow_fence: ends.slow_fence.pick(&mut rng),
            ..Shape::default()
        };
        let config = SessionConfig {
            nonce: seed,
            rebuild: ends.rebuild,
            silence: ends.silence.pick(&mut rng),
            session_timeout: ends.session_timeout.pick(&mut rng),
            max_window: u32::try_from(ends.max_window.most()).unwrap_or(u32::MAX),
            control_slots: 32,
            immediates: 128,
            send_depth: 128,
            eager_buffers: 64,
            slots: 512,
            max_sends: 1024,
            max_receives: 1024,
            ..SessionConfig::default()
        };
        let (mut messages, mut streams) = (Vec::new(), Vec::new());
        for t in &self.traffic {
            let start = Time::ZERO + t.at.pick(&mut rng);
            let class = match t.class {
                Named::Latency => Class::Latency,
                Named::Steady => Class::Steady,
                Named::Bulk => Class::Bulk,
            };
            let (least, most) = t.size.range();
            let len = (least as usize, most as usize);
            let (from, channel, eager) = (t.from, t.channel, t.eager);
            if let (Some(at_once), Some(until)) = (t.at_once, t.until) {
                let until = Time::ZERO + until.pick(&mut rng);
                streams.push(Stream { from, channel, class, eager, len, at_once, start, until });
                continue;
            }
            let mut send_at = start;
            for _ in 0..t.count.unwrap_or(0) {
                let receive_at = send_at + t.receive_after.pick(&mut rng);
                let len = rng.usize(len.0..=len.1);
                messages.push(Message {
                    from,
                    channel,
                    class,
                    eager,
                    send_at,
                    receive_at,
                    len,
                    capacity: most as usize,
                });
                send_at += t.every.pick(&mut rng);
            }
        }
        // On a channel the nth send meets the nth receive: both in the order of the list.
        messages.sort_by_key(|m| m.send_at);
        let mut clock = [[Time::ZERO; CHANNELS as usize]; 2];
        for m in &mut messages {
            let last = &mut clock[m.from][m.channel as usize];
            m.receive_at = m.receive_at.max(*last);
            *last = m.receive_at;
        }
        let mut acts: Vec<_> = self.fault.iter().flat_map(|f| faults::acts(f, &shape, &mut rng)).collect();
        acts.sort_by_key(|a| a.0);
        let e = &self.expect;
        let restarts = self.fault.iter().any(faults::Fault::ends_sessions);
        let time = |w: When| Time::ZERO + w.first();
        let ratio = |r: &Compared| Ratio {
            measure: match r.of {
                Of::Goodput => Measure::Goodput,
                Of::Share => Measure::Share(r.plane),
                Of::OtherLanes => Measure::OtherLanes,
            },
            between: (time(r.between[0]), time(r.between[1])),
            before: (time(r.before[0]), time(r.before[1])),
            least: r.least,
        };
        let last = acts
            .iter()
            .map(|a| a.0)
            .chain(streams.iter().map(|s| s.until))
            .chain(messages.iter().map(|m| m.receive_at));
        let last = last.max().unwrap_or(Time::ZERO);
        let want = Want {
            limit: e.limit.map_or(last + Span::from_secs(60), time),
            settle: e.settle.map_or(Span::from_millis(50), When::first),
            whole: true,
            all_back: e.all_back,
            may_end: e.may_end || restarts,
            lanes_lost: e.lanes_lost,
            slowest: e.slowest.map(When::first),
            ratios: e.ratio.iter().map(ratio).collect(),
        };
        Plan { shape, config, messages, streams, acts, want }
    }
}
