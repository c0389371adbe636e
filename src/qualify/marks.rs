//! Whether congestion marks can be seen: as counters, and in datagrams.

use std::time::{Duration, Instant};

use super::rig::{DEPTH, End, Rig, Trouble, rejected};
use super::{Finding, Verdict};
use crate::class::Ecn;
use crate::mem::Access;
use crate::time::Time;
use crate::verbs::{Ah, Counters, Datagram, Local, Moves, Signal, Transport, driver_of};

/// The IP header of a datagram, before its payload.
const HEADER: usize = 40;
const PAYLOAD: u32 = 64;
const QKEY: u32 = 0x1357;
/// A datagram that has not arrived by now was lost.
const LOST_AFTER: Duration = Duration::from_secs(1);
/// DSCP 10, and ECT(0).
const SENT: u8 = 10 << 2 | Ecn::Ect0 as u8;

/// Which signals of congestion and loss this driver counts.
pub(super) fn counters(rig: &Rig) -> Finding {
    const SUBJECT: &str = "counters";
    let end = &rig.subject;
    let driver = driver_of(end.context.sysfs());
    let mut counters = Counters::new(end.context.sysfs(), end.port, driver.as_deref());
    let lifespan = counters.lifespan();
    let readings = counters.read(Time::ZERO);
    let of =
        |moves: Moves| -> Vec<&str> { readings.iter().filter(|r| r.moves == moves).map(|r| r.signal.name()).collect() };
    let list = |names: &[&str]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let (move_, maybe, never) = (of(Moves::Yes), of(Moves::DependsOnFirmware), of(Moves::Never));
    let seen = format!(
        "driver {} counts: {}; with some firmware: {}; not: {}",
        driver.as_deref().unwrap_or("unknown"),
        list(&move_),
        list(&maybe),
        list(&never)
    );
    let ecn = [Signal::CeReceived, Signal::CnpSent, Signal::CnpHandled].iter().any(|s| move_.contains(&s.name()));
    let means = match ecn {
        true => format!(
            "marks show for a port as a whole, at most every {} ms; a lane's own are not known, so lanes are steered \
             by their round trips",
            lifespan.as_nanos() / 1_000_000
        ),
        false => {
            "marks do not show on this device: a 0 says nothing, and lanes are steered by their round trips".into()
        }
    };
    let figures = vec![("counted".into(), move_.len() as f64), ("not_counted".into(), never.len() as f64)];
    Finding { figures, ..Finding::new(SUBJECT, Verdict::Seen, seen, means) }
}

/// Sends a datagram with ECN bits and looks for them at its other end.
pub(super) fn datagrams(rig: &Rig) -> Finding {
    const SUBJECT: &str = "marks on datagrams";
    match trial(rig) {
        Ok(Some(tos)) if tos == SENT => Finding::new(
            SUBJECT,
            Verdict::Seen,
            format!("a datagram sent with traffic class {SENT:#04x} arrived with {tos:#04x} before its payload"),
            "probes by datagram would see marks path by path",
        ),
        Ok(Some(tos)) => Finding::new(
            SUBJECT,
            Verdict::Seen,
            format!("a datagram sent with traffic class {SENT:#04x} arrived with {tos:#04x}"),
            "something on the way, or the driver, rewrites DSCP or ECN (`cma_roce_tos`, the file tc/1/traffic_class of the \
             device, the switch's trust mode): marks mean nothing until that is known",
        ),
        Ok(None) => Finding::new(
            SUBJECT,
            Verdict::Seen,
            "a datagram arrived without the IP header before its payload",
            "this driver does not show marks in datagrams",
        ),
        Err(trouble) => Finding::new(
            SUBJECT,
            Verdict::Unknown,
            trouble.to_string(),
            "lanes do not use datagrams; probes that would see marks cannot be made",
        ),
    }
}

/// The traffic class that arrived; `None` without a header.
fn trial(rig: &Rig) -> Result<Option<u8>, Trouble> {
    let far = rig.subject.memory(4096, Access::LOCAL_WRITE)?;
    let near = rig.peer.memory(4096, Access::LOCAL_READ)?;
    let mut cqs = [rig.subject.queue(DEPTH)?, rig.peer.queue(DEPTH)?];
    let start = |end: &End, cq| -> Result<_, Trouble> {
        let mut qp = end.queue_pair(cq, Transport::Ud)?;
        qp.init(end.port, QKEY)?;
        qp.start_datagrams(1)?;
        Ok(qp)
    };
    let mut taker = start(&rig.subject, &cqs[0])?;
    let mut sender = start(&rig.peer, &cqs[1])?;
    taker.post_receive(0, Some(Local { mr: &far, offset: 0, len: HEADER as u32 + PAYLOAD }))?;
    let mut route = rig.peer.route(&rig.subject, 1);
    route.traffic_class = SENT;
    let ah = Ah::new(&rig.peer.pd, &route)?;
    let to = Datagram { ah: &ah, qpn: taker.qpn(), qkey: QKEY };
    let local = Local { mr: &near, offset: 0, len: PAYLOAD };
    if !sender.send_datagram(1, local, &to).map_err(|r| rejected(&rig.peer, r))? {
        return Err(Trouble::Rejected { device: rig.peer.name(), errno: libc::ENOMEM });
    }
    let (mut received, sent) = (None, Instant::now());
    while received.is_none() {
        if sent.elapsed() >= LOST_AFTER {
            return Err(Trouble::Lost);
        }
        cqs[1].poll(1, |_| {})?;
        if cqs[0].poll(1, |wc| received = Some(*wc))? == 0 {
            std::thread::yield_now();
        }
    }
    let Some(wc) = received.filter(|wc| wc.status == 0) else {
        let (status, vendor) = received.map_or((0, 0), |wc| (wc.status, wc.vendor_err));
        return Err(Trouble::Completion { device: rig.subject.name(), what: "a receive", status, vendor });
    };
    let mut header = [0; HEADER];
    if let Some(region) = far.region() {
        region.read_at(0, &mut header)?;
    }
    Ok(wc.grh.then(|| traffic_class(&header, rig.subject.is_ipv4())).flatten())
}

/// An IPv4 header stands at the end of the 40 bytes, an IPv6 header fills them.
fn traffic_class(header: &[u8; HEADER], v4: bool) -> Option<u8> {
    match v4 {
        true => (header[20] >> 4 == 4).then_some(header[21]),
        false => (header[0] >> 4 == 6).then_some(header[0] << 4 | header[1] >> 4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_as_rdma_rxe_gives_them() {
        let mut v4 = [0; HEADER];
        v4[20..24].copy_from_slice(&[0x45, 0x03, 0x00, 0x74]);
        let mut v6 = [0; HEADER];
        v6[..4].copy_from_slice(&[0x60, 0x30, 0, 0]);
        assert_eq!((traffic_class(&v4, true), traffic_class(&v6, false)), (Some(3), Some(3)));
        assert_eq!((traffic_class(&v6, true), traffic_class(&v4, false)), (None, None));
    }
}
