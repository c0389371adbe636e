//! What a run reports: a line for people, an object for programs.

use std::fs::File;
use std::io::{self, Write};

use planespray::sim::uec::Outcome;
use serde_json::{Value, json};

/// Flows up to this size are reported apart when there are larger ones too: they feel latency, not bandwidth.
const SMALL: u32 = 64 << 10;

/// Where JSON goes.
pub(super) enum Sink {
    None,
    Standard,
    File(File),
}

impl Sink {
    pub(super) fn open(path: Option<&str>) -> Result<Sink, String> {
        match path {
            None => Ok(Sink::None),
            Some("-") => Ok(Sink::Standard),
            Some(path) => File::create(path).map(Sink::File).map_err(|e| format!("cannot write {path}: {e}")),
        }
    }

    pub(super) fn write(&mut self, value: &Value) -> io::Result<()> {
        match self {
            Sink::None => Ok(()),
            Sink::Standard => writeln!(io::stdout(), "{value}"),
            Sink::File(file) => writeln!(file, "{value}"),
        }
    }
}

/// Rounded to a thousandth; null if it is not known.
fn milli(x: Option<f64>) -> Value {
    x.filter(|x| x.is_finite()).map_or(Value::Null, |x| json!((x * 1e3).round() / 1e3))
}

/// One JSON object. Times are microseconds; those of flows that were not done are not in them, and `ratio` is null then.
pub(super) fn json(o: &Outcome, seconds: f64) -> Value {
    let all = o.times(|_| true);
    let small = o.times(|f| f.bytes <= SMALL);
    let large = o.times(|f| f.bytes > SMALL);
    let mut value = json!({
        "policy": o.policy.to_string(),
        "seed": o.seed,
        "flows": o.flows.len(),
        "unfinished": o.unfinished(),
        "slowest_us": milli(all.map(|t| t.slowest)),
        "mean_us": milli(all.map(|t| t.mean)),
        "p50_us": milli(all.map(|t| t.p50)),
        "p99_us": milli(all.map(|t| t.p99)),
        "ideal_us": milli(Some(o.ideal_us)),
        "rtt_us": milli(Some(o.rtt_us)),
        "ratio": milli(o.ratio()),
        "packets": o.packets,
        "retransmissions": o.retransmissions,
        "spurious": o.spurious,
        "timeouts": o.timeouts,
        "given_up": o.given_up,
        "trims": o.trims,
        "drops": o.drops,
        "marks": o.marks,
        "recovery_rtts": milli(o.recovery_rtts()),
        "per_plane_bytes": o.per_plane_bytes,
        "packet_hops": o.packet_hops,
        "header_hops": o.header_hops,
        "hops_per_s": (o.packet_hops as f64 / seconds.max(1e-9)).round(),
        "rss_mb": milli(rss_mb()),
    });
    if let (Some(small), Some(large)) = (small, large) {
        value["small_p50_us"] = milli(Some(small.p50));
        value["small_p99_us"] = milli(Some(small.p99));
        value["large_slowest_us"] = milli(Some(large.slowest));
    }
    value
}

/// One line.
pub(super) fn line(o: &Outcome) -> String {
    let Some(t) = o.times(|_| true) else { return format!("{} seed {}: no flow was done", o.policy, o.seed) };
    let ratio = o.ratio().map_or("-".to_string(), |r| format!("{r:.3}"));
    format!(
        "{} seed {}: slowest {:.1} us, {ratio} x ideal {:.1} us; mean {:.1}, p99 {:.1}; {} sent again, {} of them in vain, {} trims",
        o.policy, o.seed, t.slowest, o.ideal_us, t.mean, t.p99, o.retransmissions, o.spurious, o.trims
    )
}

/// The most memory that this process has had, in MB.
fn rss_mb() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kb: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kb / 1024.0)
}
