//! What drivers count about congestion and loss, under one set of names.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

use crate::time::{Span, Time};

/// What is counted. Each port counts for itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Signal {
    /// Packets received with CE.
    CeReceived,
    /// Congestion notification packets sent.
    CnpSent,
    /// Congestion notification packets that slowed a queue pair down.
    CnpHandled,
    /// Congestion notification packets that were ignored.
    CnpIgnored,
    /// Requests received out of order.
    OutOfSequence,
    /// NAKs received for a gap in our requests.
    SequenceNak,
    /// Acknowledgements that did not come in time.
    AckTimeout,
    /// Queue pairs given up after all retries.
    RetriesExceeded,
    /// "Receiver not ready" received.
    RnrReceived,
    /// "Receiver not ready" sent.
    RnrSent,
    /// Packets dropped for want of a receive.
    NoReceive,
    /// Requests refused for key, bounds or rights.
    AccessRefused,
    /// Requests received twice.
    Duplicates,
}

impl Signal {
    /// All of them.
    pub const ALL: [Signal; 13] = [
        Signal::CeReceived,
        Signal::CnpSent,
        Signal::CnpHandled,
        Signal::CnpIgnored,
        Signal::OutOfSequence,
        Signal::SequenceNak,
        Signal::AckTimeout,
        Signal::RetriesExceeded,
        Signal::RnrReceived,
        Signal::RnrSent,
        Signal::NoReceive,
        Signal::AccessRefused,
        Signal::Duplicates,
    ];

    /// A name for logs and tables.
    pub fn name(self) -> &'static str {
        match self {
            Signal::CeReceived => "ce_received",
            Signal::CnpSent => "cnp_sent",
            Signal::CnpHandled => "cnp_handled",
            Signal::CnpIgnored => "cnp_ignored",
            Signal::OutOfSequence => "out_of_sequence",
            Signal::SequenceNak => "sequence_nak",
            Signal::AckTimeout => "ack_timeout",
            Signal::RetriesExceeded => "retries_exceeded",
            Signal::RnrReceived => "rnr_received",
            Signal::RnrSent => "rnr_sent",
            Signal::NoReceive => "no_receive",
            Signal::AccessRefused => "access_refused",
            Signal::Duplicates => "duplicates",
        }
    }
}

/// Whether a counter can ever change. A 0 of one that cannot says nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moves {
    /// It can.
    Yes,
    /// It stands still with some firmware.
    DependsOnFirmware,
    /// The driver has no such counter, or one that stands still.
    Never,
}

/// One reading of one counter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reading {
    /// What is counted.
    pub signal: Signal,
    /// Its value; `None` where the driver has none, or its files cannot be read.
    pub value: Option<u64>,
    /// Its files, relative to the port's directory, joined by ` + `; empty where the driver has none.
    pub source: String,
    /// The driver as sysfs names it; empty if that is not known.
    pub driver: String,
    /// Whether it can change.
    pub moves: Moves,
    /// How old the value may be: since it was read, and how long the driver keeps it before.
    pub age: Span,
}

/// The files of one signal: their sum, for each driver.
type Files = &'static [&'static str];

/// What a driver calls a signal, and whether it moves. Facts of the kernel's sources.
fn files(driver: &str, signal: Signal) -> (Files, Moves) {
    use Signal::*;
    let files: Files = match (driver, signal) {
        ("mlx5", CeReceived) => &["np_ecn_marked_roce_packets"],
        ("mlx5", CnpSent) => &["np_cnp_sent"],
        ("mlx5", CnpHandled) => &["rp_cnp_handled"],
        ("mlx5", CnpIgnored) => &["rp_cnp_ignored"],
        ("mlx5", OutOfSequence) => &["out_of_sequence"],
        ("mlx5", SequenceNak) => &["packet_seq_err"],
        ("mlx5", AckTimeout) => &["local_ack_timeout_err"],
        ("mlx5", RetriesExceeded) => &["req_transport_retries_exceeded"],
        ("mlx5", RnrReceived) => &["rnr_nak_retry_err"],
        ("mlx5", NoReceive) => &["out_of_buffer"],
        ("mlx5", AccessRefused) => &["resp_remote_access_errors"],
        ("mlx5" | "rxe", Duplicates) => &["duplicate_request"],
        ("bnxt_re", OutOfSequence) => &["oos_drop_count"],
        ("bnxt_re", SequenceNak) => &["seq_err_naks_rcvd"],
        ("bnxt_re", AckTimeout) => &["to_retransmits"],
        ("bnxt_re", RetriesExceeded) => &["max_retry_exceeded"],
        ("bnxt_re", RnrReceived) => &["rnr_naks_rcvd"],
        ("bnxt_re", NoReceive) => &["rx_out_of_buffer"],
        ("bnxt_re", AccessRefused) => {
            &["res_rx_invalid_rkey", "res_rx_range_err", "res_rx_no_perm", "res_rx_domain_err"]
        }
        ("bnxt_re", Duplicates) => &["dup_req"],
        ("irdma", CeReceived) => &["RxECNMrkd"],
        ("irdma", CnpSent) => &["cnpSent"],
        ("irdma", CnpHandled) => &["cnpHandled"],
        ("irdma", CnpIgnored) => &["cnpIgnored"],
        ("irdma", AckTimeout) => &["RetransSegs"],
        ("rxe", OutOfSequence) => &["out_of_seq_request"],
        ("rxe", SequenceNak) => &["rcvd_seq_err"],
        ("rxe", AckTimeout) => &["completer_retry_err"],
        ("rxe", RetriesExceeded) => &["retry_exceeded_err"],
        ("rxe", RnrReceived) => &["rcvd_rnr_err"],
        ("rxe", RnrSent) => &["send_rnr_err"],
        _ => &[],
    };
    let moves = match (driver, signal) {
        _ if files.is_empty() => Moves::Never,
        ("mlx5", AckTimeout) => Moves::DependsOnFirmware,
        _ => Moves::Yes,
    };
    (files, moves)
}

/// The counters of one port.
#[derive(Clone, Debug)]
pub struct Counters {
    directory: PathBuf,
    driver: String,
    lifespan: Span,
    last: Vec<Reading>,
    read_at: Option<Time>,
}

impl Counters {
    /// The counters of `port` of the device whose directory below `/sys/class/infiniband` is `sysfs`, and whose driver
    /// [`super::driver_of`] told.
    pub fn new(sysfs: &Path, port: u8, driver: Option<&str>) -> Counters {
        let directory = sysfs.join(format!("ports/{port}/hw_counters"));
        // Drivers keep what they read from the device for so many ms; the kernel's default is 10.
        let lifespan = fs::read_to_string(directory.join("lifespan")).ok().and_then(|t| t.trim().parse().ok());
        Counters {
            directory,
            driver: driver.unwrap_or_default().to_owned(),
            lifespan: Span::from_millis(lifespan.unwrap_or(10)),
            last: Vec::new(),
            read_at: None,
        }
    }

    /// How long the driver keeps what it has read: asking more often gives the same again.
    pub fn lifespan(&self) -> Span {
        self.lifespan
    }

    /// All signals as of `now`. Within the driver's lifespan of the last reading, that one is given again, older.
    pub fn read(&mut self, now: Time) -> &[Reading] {
        let since = self.read_at.map(|at| now.since(at));
        match since {
            Some(since) if since < self.lifespan => {}
            _ => {
                self.last = Signal::ALL.iter().map(|&s| self.read_one(s)).collect();
                self.read_at = Some(now);
            }
        }
        let age = (now + self.lifespan).since(self.read_at.unwrap_or(now));
        for reading in &mut self.last {
            reading.age = age;
        }
        &self.last
    }

    fn read_one(&self, signal: Signal) -> Reading {
        let (names, moves) = files(&self.driver, signal);
        let values: Option<Vec<u64>> =
            names.iter().map(|n| fs::read_to_string(self.directory.join(n)).ok()?.trim().parse::<u64>().ok()).collect();
        let value = values.filter(|v| !v.is_empty()).map(|v| v.iter().fold(0, |sum: u64, n| sum.wrapping_add(*n)));
        Reading {
            signal,
            value,
            source: names.iter().map(|n| format!("hw_counters/{n}")).collect::<Vec<_>>().join(" + "),
            driver: self.driver.clone(),
            moves: if value.is_none() { Moves::Never } else { moves },
            age: Span::ZERO,
        }
    }
}

/// In a sentence, for people: a 0 that can only be 0 is not good news.
impl std::fmt::Display for Reading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, driver) = (self.signal.name(), if self.driver.is_empty() { "unknown" } else { &self.driver });
        match (self.value, self.moves) {
            (Some(value), Moves::Yes) => write!(f, "{name} {value} ({}, up to {:?} old)", self.source, self.age),
            (Some(value), _) => {
                write!(f, "{name} {value} ({}, up to {:?} old; some firmware never counts it)", self.source, self.age)
            }
            (None, _) if self.source.is_empty() => write!(f, "{name} is not counted by driver {driver}"),
            (None, _) => write!(f, "{name}: {} of driver {driver} cannot be read", self.source),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(driver: &str, counters: &[(&str, &str)]) -> (tempfile::TempDir, Counters) {
        let root = tempfile::tempdir().expect("a directory");
        let dir = root.path().join("ports/1/hw_counters");
        fs::create_dir_all(&dir).expect("made");
        for (name, value) in counters {
            fs::write(dir.join(name), value).expect("written");
        }
        let counters = Counters::new(root.path(), 1, Some(driver));
        (root, counters)
    }

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    fn get(readings: &[Reading], signal: Signal) -> &Reading {
        readings.iter().find(|r| r.signal == signal).expect("every signal has a reading")
    }

    #[test]
    fn names_of_each_driver() {
        let (_root, mut c) = tree(
            "mlx5",
            &[
                ("np_ecn_marked_roce_packets", "12\n"),
                ("np_cnp_sent", "7\n"),
                ("local_ack_timeout_err", "0\n"),
                ("lifespan", "10\n"),
            ],
        );
        let r = c.read(at(0)).to_vec();
        assert_eq!((get(&r, Signal::CeReceived).value, get(&r, Signal::CnpSent).value), (Some(12), Some(7)));
        assert_eq!(get(&r, Signal::AckTimeout).moves, Moves::DependsOnFirmware);
        let absent = get(&r, Signal::CnpHandled);
        assert_eq!((absent.value, absent.moves), (None, Moves::Never));
        assert!(absent.to_string().contains("cannot be read"), "{absent}");

        let refusals = [("res_rx_invalid_rkey", "1"), ("res_rx_range_err", "2"), ("res_rx_no_perm", "3")];
        let (root, mut c) = tree("bnxt_re", &refusals);
        assert_eq!(get(c.read(at(0)), Signal::AccessRefused).value, None, "one of four is missing");
        fs::write(root.path().join("ports/1/hw_counters/res_rx_domain_err"), "4").expect("written");
        assert_eq!(get(c.read(at(50)), Signal::AccessRefused).value, Some(10));

        let (_root, mut c) = tree("rxe", &[("rcvd_seq_err", "5"), ("np_cnp_sent", "99")]);
        let r = c.read(at(0)).to_vec();
        assert_eq!(get(&r, Signal::SequenceNak).value, Some(5));
        for signal in [Signal::CeReceived, Signal::CnpSent, Signal::CnpHandled, Signal::CnpIgnored] {
            let reading = get(&r, signal);
            assert_eq!((reading.value, reading.moves), (None, Moves::Never), "{reading}");
            assert!(reading.to_string().contains("not counted by driver rxe"), "{reading}");
        }
    }

    #[test]
    fn no_faster_than_the_driver_and_with_its_age() {
        let (root, mut c) = tree("rxe", &[("lifespan", "20"), ("rcvd_seq_err", "1")]);
        assert_eq!(c.lifespan(), Span::from_millis(20));
        assert_eq!(get(c.read(at(100)), Signal::SequenceNak).age, Span::from_millis(20));
        fs::write(root.path().join("ports/1/hw_counters/rcvd_seq_err"), "2").expect("written");
        let again = get(c.read(at(115)), Signal::SequenceNak).clone();
        assert_eq!((again.value, again.age), (Some(1), Span::from_millis(35)));
        let fresh = get(c.read(at(120)), Signal::SequenceNak).clone();
        assert_eq!((fresh.value, fresh.age), (Some(2), Span::from_millis(20)));
    }

    #[test]
    fn rubbish_is_no_value() {
        let (_root, mut c) = tree("mlx5", &[("np_cnp_sent", "many"), ("rp_cnp_handled", "-3"), ("lifespan", "soon")]);
        let r = c.read(at(0)).to_vec();
        assert_eq!((get(&r, Signal::CnpSent).value, get(&r, Signal::CnpHandled).value), (None, None));
        assert_eq!(c.lifespan(), Span::from_millis(10));
        let mut nowhere = Counters::new(Path::new("/nowhere"), 1, None);
        assert!(nowhere.read(at(0)).iter().all(|r| r.value.is_none() && r.moves == Moves::Never));
    }
}
