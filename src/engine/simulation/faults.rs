//! The faults of a scenario file, and what a seed makes of them.

use serde::Deserialize;

use super::plan::Act;
use super::units::When;
use super::world::{Shape, address};
use crate::sim::{Cut, Faults, Part};
use crate::time::{Span, Time};

/// Repetitions of a fault, and acts that one makes, at most.
const TIMES: u32 = 10_000;
const STRAYS: u64 = 100_000;

/// A fault as it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fault {
    what: What,
    at: When,
    #[serde(default)]
    lasts: Option<When>,
    #[serde(default)]
    times: Option<u32>,
    #[serde(default)]
    every: Option<When>,
    #[serde(default)]
    plane: Option<u8>,
    #[serde(default)]
    planes: Option<Vec<u8>>,
    #[serde(default)]
    path: Option<u16>,
    #[serde(default)]
    source_port: Option<u16>,
    #[serde(default)]
    end: Option<usize>,
    #[serde(default)]
    lane: Option<usize>,
    #[serde(default)]
    one_way: Option<bool>,
    #[serde(default)]
    held: Option<bool>,
    #[serde(default)]
    share: Option<f64>,
    #[serde(default)]
    up_to: Option<When>,
    #[serde(default)]
    event: Option<String>,
    #[serde(default)]
    noticed: Option<bool>,
    #[serde(default)]
    loss: Option<f64>,
    #[serde(default)]
    burst: Option<u16>,
    #[serde(default)]
    duplicate: Option<f64>,
    #[serde(default)]
    reorder: Option<f64>,
    #[serde(default)]
    reorder_by: Option<When>,
    #[serde(default)]
    mark: Option<f64>,
    #[serde(default)]
    corrupt: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum What {
    /// Packets vanish silently, or are held until it ends.
    Cut,
    /// Packets are lost, doubled, late, marked, spoilt.
    Noise,
    /// A part has a share of its speed.
    Rate,
    /// Nothing moves, and nothing is lost.
    Pause,
    /// A port loses its carrier.
    Down,
    /// A port's address is gone: its link blinks, and comes back before the address does.
    Gid,
    /// A lane goes to ERR by itself.
    Error,
    /// All lanes of a port do.
    Overrun,
    /// A process begins anew at the same addresses.
    Restart,
    /// A process stands still.
    Stop,
    /// It does so for short whiles.
    Gaps,
    /// Packets that are none of ours.
    Stray,
    /// An operator takes a plane out of use.
    Drain,
}

impl What {
    /// What it may be told, and what it must be.
    fn fields(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            What::Cut => (&["lasts", "plane", "planes", "path", "source_port", "end", "one_way", "held"], &[]),
            What::Noise => (
                &["lasts", "plane", "planes", "loss", "burst", "duplicate", "reorder", "reorder_by", "mark", "corrupt"],
                &[],
            ),
            What::Rate => (&["lasts", "plane", "planes", "path", "end", "share"], &["share"]),
            What::Pause => (&["lasts", "plane", "planes", "path", "end"], &["lasts"]),
            What::Down => (&["lasts", "plane", "planes", "end", "event"], &[]),
            What::Gid => (&["lasts", "plane", "planes", "end"], &["lasts", "end"]),
            What::Error => (&["plane", "end", "lane"], &["plane", "end", "lane"]),
            What::Overrun => (&["plane", "planes", "end"], &["end"]),
            What::Restart => (&["end", "noticed"], &["end"]),
            What::Stop => (&["end", "lasts"], &["end", "lasts"]),
            What::Gaps => (&["end", "up_to"], &["end", "up_to"]),
            What::Stray => (&[], &[]),
            What::Drain => (&["lasts", "plane", "planes", "end"], &["end"]),
        }
    }
}

impl Fault {
    /// After it sessions may be over.
    pub(super) fn ends_sessions(&self) -> bool {
        self.what == What::Restart
    }

    fn told(&self) -> Vec<&'static str> {
        let told = [
            ("lasts", self.lasts.is_some()),
            ("plane", self.plane.is_some()),
            ("planes", self.planes.is_some()),
            ("path", self.path.is_some()),
            ("source_port", self.source_port.is_some()),
            ("end", self.end.is_some()),
            ("lane", self.lane.is_some()),
            ("one_way", self.one_way.is_some()),
            ("held", self.held.is_some()),
            ("share", self.share.is_some()),
            ("up_to", self.up_to.is_some()),
            ("event", self.event.is_some()),
            ("noticed", self.noticed.is_some()),
            ("loss", self.loss.is_some()),
            ("burst", self.burst.is_some()),
            ("duplicate", self.duplicate.is_some()),
            ("reorder", self.reorder.is_some()),
            ("reorder_by", self.reorder_by.is_some()),
            ("mark", self.mark.is_some()),
            ("corrupt", self.corrupt.is_some()),
        ];
        told.iter().filter(|t| t.1).map(|t| t.0).collect()
    }

    /// The planes it is about: all of them if it names none.
    fn planes(&self, all: u8) -> Vec<u8> {
        match (&self.planes, self.plane) {
            (Some(planes), _) => planes.clone(),
            (None, Some(plane)) => vec![plane],
            (None, None) => (0..all).collect(),
        }
    }

    fn delay_of_event(&self) -> Result<Option<When>, String> {
        match self.event.as_deref() {
            None => Ok(Some(When::default())),
            Some("lost") => Ok(None),
            Some(text) => When::try_from(text.to_owned()).map(Some).map_err(|e| format!("fault.event: {e}, or lost")),
        }
    }
}

/// Looks whether a fault is complete, and about something that there is.
pub(super) fn check(f: &Fault, planes: u8, lanes: usize, switched: impl Fn(u8) -> bool) -> Result<(), String> {
    let what = format!("fault `{:?}`", f.what).to_lowercase();
    let (may, must) = f.what.fields();
    let told = f.told();
    if let Some(odd) = told.iter().find(|t| !may.contains(t)) {
        return Err(format!("{what} has no {odd}"));
    }
    if let Some(missing) = must.iter().find(|m| !told.contains(m)) {
        return Err(format!("{what} needs {missing}"));
    }
    if let Some(plane) = f.planes(planes).iter().find(|&&p| p >= planes) {
        return Err(format!("{what}: there is no plane {plane}"));
    }
    if f.end.is_some_and(|e| e > 1) || f.lane.is_some_and(|l| l >= 2 * (lanes + 1)) {
        return Err(format!("{what}: there is no such end or lane"));
    }
    if f.times.is_some() != f.every.is_some() || f.times.is_some_and(|t| !(1..=TIMES).contains(&t)) {
        return Err(format!("{what}: times (1 to {TIMES}) and every go together"));
    }
    let needs_switches = f.path.is_some() || matches!(f.what, What::Rate | What::Pause);
    if needs_switches && f.planes(planes).iter().any(|&p| !switched(p)) {
        return Err(format!("{what} needs planes with a rate"));
    }
    if f.path.is_some() && (f.held == Some(true) || f.end.is_some() || f.source_port.is_some()) {
        return Err(format!("{what}: a path is all of it, both ways, and holds nothing"));
    }
    let chances = [f.loss, f.duplicate, f.reorder, f.mark, f.corrupt, f.share];
    if chances.iter().flatten().any(|c| !(0.0..=1.0).contains(c)) {
        return Err(format!("{what}: shares and probabilities are between 0 and 1"));
    }
    f.delay_of_event().map(drop)
}

/// What happens when.
pub(super) fn acts(f: &Fault, shape: &Shape, rng: &mut fastrand::Rng) -> Vec<(Time, Act)> {
    let mut acts = Vec::new();
    let mut at = Time::ZERO + f.at.pick(rng);
    for _ in 0..f.times.unwrap_or(1) {
        let lasts = f.lasts.map(|l| l.pick(rng));
        once(f, shape, rng, at, lasts, &mut acts);
        at += f.every.unwrap_or_default().pick(rng);
    }
    if f.what == What::Stray {
        acts.truncate(STRAYS as usize);
    }
    acts
}

fn once(f: &Fault, shape: &Shape, rng: &mut fastrand::Rng, at: Time, lasts: Option<Span>, acts: &mut Vec<(Time, Act)>) {
    let all = shape.planes.len() as u8;
    let ends = || f.end.map_or(vec![0, 1], |e| vec![e]);
    let span = |acts: &mut Vec<(Time, Act)>, begin: Act, end: Act| {
        acts.push((at, begin));
        acts.extend(lasts.map(|l| (at + l, end)));
    };
    match f.what {
        What::Restart | What::Stop | What::Gaps | What::Stray => {
            let side = f.end.unwrap_or(0);
            let act = match f.what {
                What::Restart => Act::Restart { side, noticed: f.noticed.unwrap_or(true) },
                What::Stop => Act::Stop(side, lasts.unwrap_or_default()),
                What::Gaps => Act::Stop(side, f.up_to.unwrap_or_default().pick(rng)),
                _ => Act::Stray,
            };
            acts.push((at, act));
            return;
        }
        _ => {}
    }
    for plane in f.planes(all) {
        let number = u16::from(plane);
        let part = match (f.path, f.end) {
            (Some(path), _) => Part::Path(number, path),
            (None, Some(end)) => Part::Port(number, end),
            (None, None) => Part::Plane(number),
        };
        let cut = |from: usize| Cut {
            from: address(plane, from),
            to: address(plane, 1 - from),
            source_port: f.source_port,
            held: f.held.unwrap_or(false),
        };
        match f.what {
            What::Cut if f.path.is_some() => span(acts, Act::Dead(part, true), Act::Dead(part, false)),
            What::Cut => {
                let from = f.end.unwrap_or(0);
                span(acts, Act::Cut(cut(from)), Act::EndCut(cut(from)));
                if !f.one_way.unwrap_or(false) {
                    span(acts, Act::Cut(cut(1 - from)), Act::EndCut(cut(1 - from)));
                }
            }
            What::Noise => {
                let faults = Faults {
                    loss: f.loss.unwrap_or(0.0),
                    burst: f.burst.unwrap_or(0),
                    duplicate: f.duplicate.unwrap_or(0.0),
                    reorder: f.reorder.unwrap_or(0.0),
                    reorder_by: f.reorder_by.map_or(Faults::NONE.reorder_by, |w| w.pick(rng)),
                    mark: f.mark.unwrap_or(0.0),
                    corrupt: f.corrupt.unwrap_or(0.0),
                };
                span(acts, Act::Faults(number, Some(faults)), Act::Faults(number, None));
            }
            What::Rate => span(acts, Act::Share(part, f.share.unwrap_or(1.0)), Act::Share(part, 1.0)),
            What::Pause => acts.push((at, Act::Pause(part, lasts.unwrap_or_default()))),
            What::Down | What::Gid => {
                for from in [0, 1] {
                    span(acts, Act::Cut(cut(from)), Act::EndCut(cut(from)));
                }
                let Ok(Some(late)) = f.delay_of_event() else { continue };
                for side in ends() {
                    let late = late.pick(rng);
                    acts.push((at + late, Act::Carrier { side, plane, up: false }));
                    // A link that blinks is back at once.
                    let back = if f.what == What::Gid { Some(Span::from_millis(1)) } else { lasts };
                    acts.extend(back.map(|l| (at + l + late, Act::Carrier { side, plane, up: true })));
                }
            }
            What::Error => {
                let lane = usize::from(plane) * shape.lanes_per_plane() + f.lane.unwrap_or(0);
                acts.push((at, Act::Error(f.end.unwrap_or(0), lane)));
            }
            What::Overrun => acts.push((at, Act::Overrun(f.end.unwrap_or(0), plane))),
            What::Drain => {
                let side = f.end.unwrap_or(0);
                span(acts, Act::Drain(side, plane, true), Act::Drain(side, plane, false));
            }
            What::Restart | What::Stop | What::Gaps | What::Stray => {}
        }
    }
}
