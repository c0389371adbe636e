//! What must hold for any bytes that a stranger, or a hostile peer, sends into a handshake. Fuzzing and the property
//! tests share it.

use planespray::bootstrap::{
    Auth, BootstrapError, FEATURE_PROBES, Handshake, Hello, Limits, MAX_HANDSHAKE, PairReport, PlaneOffer, Records,
    Role, Step, VERSION_MAX,
};
use planespray::lanes::LaneAddress;
use planespray::time::Time;

/// Panics if `bytes` make a handshake misbehave. The first byte chooses how the rest is used.
pub(crate) fn check(bytes: &[u8]) {
    let Some((&how, rest)) = bytes.split_first() else { return };
    let role = if how & 1 == 0 { Role::Initiator } else { Role::Responder };
    match how >> 1 & 1 {
        0 => stranger(role, rest),
        _ => man_in_the_middle(role, rest),
    }
}

/// Everything that one end hears is made up.
fn stranger(role: Role, bytes: &[u8]) {
    let mut h = end(role);
    let mut taken = 0;
    while taken < bytes.len() {
        let wanted = h.wanted();
        match h.input(Time::ZERO, &bytes[taken..]) {
            Ok(0) => break,
            Ok(n) => {
                assert!(wanted > 0 && n <= bytes.len() - taken);
                taken += n;
            }
            Err(_) => break,
        }
        serve(&mut h);
    }
    assert!(taken <= MAX_HANDSHAKE);
    assert!(!h.is_authenticated(), "nobody finds the key exchange by chance");
}

/// Two real ends; what `victim` hears is changed by the bytes: each pair is a distance in the stream and a mask.
fn man_in_the_middle(victim: Role, bytes: &[u8]) {
    let mut ends = [end(Role::Initiator), end(Role::Responder)];
    let mut changes = bytes.chunks_exact(2).map(|c| (usize::from(c[0]), c[1]));
    let mut next = changes.next();
    let mut changed = false;
    let mut done = [false; 2];
    // A handshake takes four turns each.
    for turn in 0..16 {
        let from = turn % 2;
        let mut wire = Vec::new();
        ends[from].take_output(&mut wire);
        let target = if from == 0 { Role::Responder } else { Role::Initiator };
        if target == victim {
            let mut at = 0;
            while let Some((distance, mask)) = next {
                let Some(byte) = wire.get_mut(at + distance) else {
                    next = Some((at + distance - wire.len(), mask));
                    break;
                };
                *byte ^= mask;
                changed |= mask != 0;
                at += distance + 1;
                next = changes.next();
            }
        }
        let to = &mut ends[1 - from];
        let _ = to.input(Time::ZERO, &wire);
        done[1 - from] = serve(to);
        done[from] = serve(&mut ends[from]);
    }
    if changed {
        assert!(!(done[0] && done[1]), "a change went unseen");
        return;
    }
    let [Ok((a, mut left)), Ok((b, mut right))] = ends.map(Handshake::finish) else {
        panic!("two good ends did not come together")
    };
    assert_eq!((a.session, a.plan, a.version), (b.session, b.plan, VERSION_MAX));
    records(&mut left, &mut right, bytes);
}

/// A record comes out as it went in; whatever follows is refused or taken, but never as a record.
fn records(left: &mut Records, right: &mut Records, bytes: &[u8]) {
    let record = &bytes[..bytes.len().min(Records::MAX)];
    let mut wire = Vec::new();
    left.seal(record, &mut wire).expect("short enough");
    assert_eq!(right.input(&wire), Ok(wire.len()));
    assert_eq!(right.open(), Ok(Some(record)));
    if right.input(bytes).is_ok() {
        assert!(!matches!(right.open(), Ok(Some(_))), "a made-up record was taken");
    }
}

fn end(role: Role) -> Handshake {
    let plane = PlaneOffer {
        rail: 0,
        plane: 0,
        addr: match role {
            Role::Initiator => [10, 0, 0, 1].into(),
            Role::Responder => [10, 0, 0, 2].into(),
        },
        udp_port: 4791,
        mtu: 4096,
        receive_budget: None,
        speed: None,
    };
    let hello = Hello {
        features: FEATURE_PROBES,
        nonce: 1,
        host: "fuzz".into(),
        planes: vec![plane],
        classes: [true; 3],
        lanes_per_plane: 1,
        limits: Limits::default(),
    };
    Handshake::new(role, Auth::Insecure, hello, Time::MAX).expect("valid")
}

/// Does the caller's part. True when done.
fn serve(h: &mut Handshake) -> bool {
    loop {
        let said = match h.poll(Time::ZERO) {
            Ok(Step::Done) => return true,
            Ok(Step::NeedIo) | Err(_) => return false,
            Ok(Step::OpenProbes) => h.provide_probes(vec![9]),
            Ok(Step::PeerProbes(_)) => {
                let all = PairReport { from: 0, to: 0, burst: u8::MAX, counted: true, mtu: 4096 };
                match h.report(vec![all]) {
                    // The peer says that it saw nothing.
                    Err(BootstrapError::Unreachable { .. }) => return false,
                    said => said,
                }
            }
            Ok(Step::PeerHello(_) | Step::Reached(_)) => {
                let lanes = lanes(h);
                h.provide_lanes(lanes)
            }
            Ok(Step::PeerLanes(_)) => h.ready(),
        };
        said.expect("it was time");
    }
}

fn lanes(h: &Handshake) -> Vec<LaneAddress> {
    let lane = |p: &planespray::bootstrap::LanePlan| {
        let offer = &h.hello().planes[usize::from(p.ports(h.role()).0)];
        LaneAddress {
            qpn: 2 + u32::from(p.index),
            psn: 0,
            addr: offer.addr,
            udp_port: offer.udp_port,
            mtu: offer.mtu,
            feedback_qpn: 0,
            feedback_secret: 0,
        }
    };
    h.plan().iter().map(lane).collect()
}
