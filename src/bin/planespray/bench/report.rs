//! Results: perftest's tables for people, JSON lines for programs.

use std::fs::File;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use super::api::{Fabric, LaneStats, PlaneStats, Stats};
use super::options::{Measure, Operation, Resolved};
use super::outage::{FaultRow, Outages};
use super::placement::Placement;
use super::samples::{Sample, Sum, comparable};

/// One result line. Null is what was not measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Record {
    pub(super) op: &'static str,
    pub(super) size: u64,
    pub(super) iterations: u64,
    pub(super) engine: &'static str,
    pub(super) planes: usize,
    /// Data lanes on all planes together.
    pub(super) lanes: usize,
    pub(super) bw_gbps: Option<f64>,
    pub(super) msg_rate_mpps: Option<f64>,
    /// Half round trips; for reads the whole of it.
    pub(super) lat_us: Option<Percentiles>,
    pub(super) wrong: u64,
    pub(super) lost: u64,
    pub(super) dup: u64,
    pub(super) retransmits: u64,
    /// Chunks of lost lanes that our end sent again, and those that had arrived, which `per_plane` does not hold.
    pub(super) replayed: u64,
    pub(super) survived: u64,
    pub(super) verify: bool,
    /// Both ends together.
    pub(super) cpu_ns_per_byte: Option<f64>,
    pub(super) placement: Option<&'static str>,
    pub(super) per_plane: Vec<PlaneRow>,
    pub(super) peer_gbps: Option<f64>,
    /// Median.
    pub(super) peer_lat_us: Option<f64>,
    /// Samples in which our own loops stood still for over 10 ms.
    pub(super) voids: u64,
    pub(super) injected: Injected,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) faults: Vec<FaultRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) goodput_after_vs_before: Option<f64>,
    #[serde(skip)]
    table: Table,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Percentiles {
    p50: f64,
    p99: f64,
    p999: f64,
}

/// What one plane carried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct PlaneRow {
    plane: u16,
    bytes: u64,
    share: f64,
    rtt_us: Option<f64>,
    ce_share: Option<f64>,
    #[serde(skip)]
    retransmits: u64,
}

/// Faults injected at both ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Injected {
    loss: u64,
    dup: u64,
    reorder: u64,
}

/// Figures for the table alone.
#[derive(Clone, Debug, Default)]
struct Table {
    /// Messages per second of the best sample.
    peak: f64,
    rate: f64,
    /// Microseconds: least, most, mean, deviation.
    spread: Option<[f64; 4]>,
    line: Vec<(f64, Vec<f64>)>,
    lanes: Vec<String>,
}

/// Everything a record is made of.
pub(super) struct Facts<'a> {
    pub(super) resolved: &'a Resolved,
    /// What moved the bytes.
    pub(super) engine: &'static str,
    pub(super) size: u64,
    pub(super) samples: &'a [Sample],
    pub(super) voids: u64,
    /// Wrong, lost and duplicated messages of everything that ran, also of void samples.
    pub(super) faults: [u64; 3],
    pub(super) retransmits: u64,
    pub(super) injected: [u64; 3],
    pub(super) outages: Outages,
    pub(super) before: &'a Stats,
    pub(super) after: &'a Stats,
}

impl Record {
    pub(super) fn new(facts: &Facts<'_>) -> Record {
        let measure = &facts.resolved.measure;
        let (placement, used) = comparable(facts.samples);
        let ours = Sum::of(used.iter().map(|s| &s.ours));
        let tcp = |i: usize| Sum::of(used.iter().filter_map(|s| s.tcp.get(i)));
        let gbps = |sum: &Sum| sum.rate() * facts.size as f64 * 8.0 / 1e9;
        let measured = ours.messages > 0 && !ours.elapsed.is_zero();
        let bandwidth = measured && !measure.lat;
        let kinds = used.iter().map(|s| s.tcp.len()).min().unwrap_or(0);
        let peer_gbps =
            (0..kinds).map(|i| gbps(&tcp(i))).fold(None, |best: Option<f64>, g| Some(best.map_or(g, |b| b.max(g))));
        let us = |ns: u64| ns as f64 / 1e3;
        let peer_lat = if kinds > 0 { tcp(0).lat.map(|l| us(l.value_at_quantile(0.5))) } else { None };
        let lat = ours.lat.as_ref().filter(|l| !l.is_empty());
        let bytes = ours.messages as f64 * facts.size as f64;
        Record {
            op: measure.op.name(),
            size: facts.size,
            iterations: ours.messages,
            engine: facts.engine,
            planes: facts.after.planes.len(),
            lanes: facts.after.planes.len() * usize::from(facts.resolved.fabric.lanes),
            bw_gbps: bandwidth.then(|| gbps(&ours)),
            msg_rate_mpps: bandwidth.then(|| ours.rate() / 1e6),
            lat_us: lat.map(|l| Percentiles {
                p50: us(l.value_at_quantile(0.5)),
                p99: us(l.value_at_quantile(0.99)),
                p999: us(l.value_at_quantile(0.999)),
            }),
            wrong: facts.faults[0],
            lost: facts.faults[1],
            dup: facts.faults[2],
            retransmits: facts.retransmits,
            replayed: facts.after.replayed.saturating_sub(facts.before.replayed),
            survived: facts.after.survived.saturating_sub(facts.before.survived),
            verify: measure.verify,
            cpu_ns_per_byte: (bytes > 0.0).then(|| ours.cpu_ns as f64 / bytes),
            placement: placement.map(Placement::name),
            per_plane: planes(facts.before, facts.after),
            peer_gbps: peer_gbps.filter(|_| !measure.lat),
            peer_lat_us: peer_lat,
            voids: facts.voids,
            injected: Injected { loss: facts.injected[0], dup: facts.injected[1], reorder: facts.injected[2] },
            faults: facts.outages.faults.clone(),
            goodput_after_vs_before: facts.outages.after_vs_before,
            table: Table {
                line: facts.outages.line.clone(),
                peak: ours.peak,
                rate: ours.rate(),
                spread: lat.map(|l| [us(l.min()), us(l.max()), l.mean() / 1e3, l.stdev() / 1e3]),
                lanes: lanes(facts.before, facts.after),
            },
        }
    }

    /// True if a byte or message was not as it should be.
    pub(super) fn is_faulty(&self) -> bool {
        self.wrong + self.lost + self.dup > 0
    }
}

/// What planes carried between two readings.
fn planes(before: &Stats, after: &Stats) -> Vec<PlaneRow> {
    let since = |p: &PlaneStats, of: fn(&PlaneStats) -> u64| {
        let earlier = before.planes.iter().find(|b| b.plane == p.plane).map_or(0, of);
        of(p).saturating_sub(earlier)
    };
    let total: u64 = after.planes.iter().map(|p| since(p, |p| p.bytes)).sum();
    let row = |p: &PlaneStats| {
        let bytes = since(p, |p| p.bytes);
        PlaneRow {
            plane: p.plane,
            bytes,
            share: if total == 0 { 0.0 } else { bytes as f64 / total as f64 },
            rtt_us: p.rtt_us,
            ce_share: p.ce_share,
            retransmits: since(p, |p| p.retransmits),
        }
    };
    after.planes.iter().map(row).collect()
}

/// A line for each lane that carried something between two readings.
fn lanes(before: &Stats, after: &Stats) -> Vec<String> {
    let same = |a: &LaneStats, b: &LaneStats| a.lane == b.lane;
    let earlier = |l: &LaneStats| before.lanes.iter().find(|b| same(b, l)).map_or((0, 0), |b| (b.bytes, b.retransmits));
    let rows: Vec<_> = after
        .lanes
        .iter()
        .map(|l| (l, l.bytes.saturating_sub(earlier(l).0), l.retransmits.saturating_sub(earlier(l).1)))
        .filter(|&(_, bytes, _)| bytes > 0)
        .collect();
    let total: u64 = rows.iter().map(|r| r.1).sum();
    let line = |&(l, bytes, retransmits): &(&LaneStats, u64, u64)| {
        format!(
            " {:<8}{:<8}{:<10}{:>16}{:>9.2}{:>12}{:>9}{:>10}",
            l.plane,
            l.lane,
            format!("{:?}", l.class).to_lowercase(),
            bytes,
            100.0 * bytes as f64 / total.max(1) as f64,
            or_dash(l.rtt_us, 1),
            or_dash(l.ce_share.map(|s| 100.0 * s), 2),
            retransmits,
        )
    };
    rows.iter().map(line).collect()
}

fn or_dash(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".into(), |v| format!("{v:.digits$}"))
}

/// Where results go.
pub(super) struct Output {
    table: Box<dyn Write>,
    json: Option<Box<dyn Write>>,
    terminal: bool,
    compare: bool,
    gbits: bool,
    lat: bool,
    op: Operation,
}

const RULE: &str = "---------------------------------------------------------------------------------------";

impl Output {
    pub(super) fn open(measure: &Measure) -> Result<Output, String> {
        let to_stdout = measure.json.as_deref() == Some("-");
        let json: Option<Box<dyn Write>> = match measure.json.as_deref() {
            None => None,
            Some("-") => Some(Box::new(io::stdout())),
            Some(path) => {
                let file = File::create(path).map_err(|e| format!("--json {path} cannot be written: {e}"))?;
                Some(Box::new(file))
            }
        };
        let (table, terminal): (Box<dyn Write>, bool) = if to_stdout {
            (Box::new(io::stderr()), io::stderr().is_terminal())
        } else {
            (Box::new(io::stdout()), io::stdout().is_terminal())
        };
        Ok(Output {
            table,
            json,
            terminal,
            compare: measure.compare_tcp,
            gbits: measure.report_gbits,
            lat: measure.lat,
            op: measure.op,
        })
    }

    /// What is to be measured, and the heads of the columns.
    pub(super) fn head(&mut self, resolved: &Resolved, opened: &Fabric) -> io::Result<()> {
        let (fabric, measure) = (&resolved.fabric, &resolved.measure);
        let name = match self.op {
            Operation::Write => "RDMA_Write",
            Operation::Send => "Send",
            Operation::Read => "RDMA_Read",
        };
        writeln!(self.table, "{RULE}")?;
        writeln!(self.table, "                    {name} {} Test", if self.lat { "Latency" } else { "BW" })?;
        let addrs: Vec<String> = opened.ports().iter().map(|p| p.addr.to_string()).collect();
        writeln!(self.table, " Engine          : {}\t\tPlanes          : {}", opened.engine(), addrs.join(", "))?;
        writeln!(self.table, " Number of qps   : {} per plane\t\tTransport type  : RoCEv2", fabric.lanes)?;
        let depth = measure.sizes.first().map_or(0, |&s| measure.slots(s));
        writeln!(self.table, " TX depth        : {depth}\t\t\tMtu             : {}[B]", fabric.mtu)?;
        let check = if measure.verify { "every byte" } else { "off" };
        writeln!(
            self.table,
            " Verification    : {check}\t\tData ex. method : {}",
            if fabric.insecure { "TCP, insecure" } else { "TCP, Noise" }
        )?;
        writeln!(self.table, "{RULE}")?;
        let peer = match (self.compare, self.lat) {
            (false, _) => "",
            (true, true) => "  TCP[usec]  ratio",
            (true, false) if self.gbits => "  TCP[Gb/sec]  ratio",
            (true, false) => "  TCP[MiB/sec]  ratio",
        };
        if self.lat {
            writeln!(
                self.table,
                " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
                 50% percentile[usec]   99% percentile[usec]   99.9% percentile[usec]   #wrong  placement{peer}"
            )
        } else {
            let unit = if self.gbits { "[Gb/sec] " } else { "[MiB/sec]" };
            writeln!(
                self.table,
                " #bytes     #iterations    BW peak{unit}    BW average{unit}   MsgRate[Mpps]   \
                 #wrong  #lost  #dup  #retrans  CPU[ns/B]  placement{peer}"
            )
        }
    }

    /// One result.
    pub(super) fn line(&mut self, r: &Record) -> io::Result<()> {
        self.clear()?;
        let placement = r.placement.unwrap_or("-");
        if let (Some([min, max, mean, stdev]), Some(p)) = (r.table.spread, r.lat_us) {
            write!(
                self.table,
                " {:<7}{:<12}{min:>14.2}{max:>15.2}{:>17.2}{mean:>15.2}{stdev:>17.2}{:>23.2}{:>23.2}{:>25.2}{:>9}  {placement:<9}",
                r.size, r.iterations, p.p50, p.p50, p.p99, p.p999, r.wrong
            )?;
            if let (true, Some(tcp)) = (self.compare, r.peer_lat_us) {
                write!(self.table, "{tcp:>11.2}{:>7.2}", p.p50 / tcp)?;
            }
        } else {
            let per_second = r.size as f64 * if self.gbits { 8.0 / 1e9 } else { 1.0 / f64::from(1 << 20) };
            write!(
                self.table,
                " {:<11}{:<12}{:>19.2}{:>22.2}{:>16.6}{:>10}{:>7}{:>6}{:>10}{:>11}  {placement:<9}",
                r.size,
                r.iterations,
                r.table.peak * per_second,
                r.table.rate * per_second,
                r.table.rate / 1e6,
                r.wrong,
                r.lost,
                r.dup,
                r.retransmits,
                or_dash(r.cpu_ns_per_byte, 3),
            )?;
            if let (true, Some(tcp), Some(ours)) = (self.compare, r.peer_gbps, r.bw_gbps) {
                let shown = if self.gbits { tcp } else { tcp * 1e9 / 8.0 / f64::from(1 << 20) };
                write!(self.table, "{shown:>13.2}{:>7.2}", ours / tcp)?;
            }
        }
        writeln!(self.table)?;
        self.table.flush()?;
        if let Some(json) = &mut self.json {
            writeln!(json, "{}", serde_json::to_string(r)?)?;
            json.flush()?;
        }
        Ok(())
    }

    /// What planes and lanes carried.
    pub(super) fn tail(&mut self, r: &Record) -> io::Result<()> {
        writeln!(self.table, "{RULE}")?;
        writeln!(self.table, " plane             bytes   share[%]   RTT[usec]    CE[%]   retrans")?;
        for p in &r.per_plane {
            writeln!(
                self.table,
                " {:<7}{:>16}{:>11.2}{:>12}{:>9}{:>10}",
                p.plane,
                p.bytes,
                100.0 * p.share,
                or_dash(p.rtt_us, 1),
                or_dash(p.ce_share.map(|s| 100.0 * s), 2),
                p.retransmits
            )?;
        }
        if self.terminal && !r.table.lanes.is_empty() {
            writeln!(
                self.table,
                " plane   lane    class                bytes share[%]   RTT[usec]    CE[%]   retrans"
            )?;
            for line in &r.table.lanes {
                writeln!(self.table, "{line}")?;
            }
        }
        if r.injected != Injected::default() {
            let i = r.injected;
            writeln!(self.table, " injected: {} lost, {} duplicated, {} reordered packets", i.loss, i.dup, i.reorder)?;
        }
        for f in &r.faults {
            writeln!(
                self.table,
                " plane {} cut at {:.2} s: given up after {} ms, longest standstill {} ms, share back {} s after the heal",
                f.plane,
                f.at_s,
                or_dash(f.detected_ms, 1),
                or_dash(f.stall_ms, 1),
                or_dash(f.share_back_s, 2)
            )?;
        }
        if let Some(ratio) = r.goodput_after_vs_before {
            writeln!(self.table, " goodput after the last heal: {ratio:.3} of that before the first cut")?;
        }
        for (at, planes) in &r.table.line {
            let planes: Vec<String> = planes.iter().map(|g| format!("{g:8.3}")).collect();
            writeln!(self.table, " {at:6.1} s {} Gb/s", planes.join(" "))?;
        }
        if r.replayed + r.survived > 0 {
            let (again, had) = (r.replayed, r.survived);
            writeln!(self.table, " lanes were lost: {again} of their chunks went again, {had} had arrived")?;
        }
        if r.voids > 0 {
            writeln!(self.table, " voids: {} samples in which this machine held us up for over 10 ms", r.voids)?;
        }
        writeln!(self.table, "{RULE}")?;
        self.table.flush()
    }

    /// How far it is, on a terminal, on a line that the next one overwrites.
    pub(super) fn progress(&mut self, text: &str) {
        if self.terminal {
            let _ = write!(io::stderr(), "\r\x1b[K {text}");
            let _ = io::stderr().flush();
        }
    }

    pub(super) fn clear(&mut self) -> io::Result<()> {
        if self.terminal { write!(io::stderr(), "\r\x1b[K") } else { Ok(()) }
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
