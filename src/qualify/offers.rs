//! What a device offers that changes how lanes should be used over it. What this machine does not say is said to be so.

use super::rig::{Rig, Trouble};
use super::{Finding, Verdict};
use crate::topology::{ChosenPort, Device};
use crate::verbs::{Qp, VerbsError};

/// All of them.
pub(super) fn all(rig: &Rig, device: &Device, port: &ChosenPort) -> Vec<Finding> {
    let qp = rig.subject.queue(16).map_err(Trouble::from).and_then(|cq| Ok(rig.subject.connection(&cq)?));
    let mut findings = match &qp {
        Ok(qp) => vec![ece(qp.ece()), order(qp)],
        Err(trouble) => vec![Finding::broken("offers", trouble)],
    };
    findings.extend([bond(device, port), adaptive_routing(device), hardware_planes()]);
    findings
}

fn ece(offered: Result<crate::verbs::Ece, VerbsError>) -> Finding {
    let finding =
        |verdict, seen: String, means| Finding::new("enhanced connection establishment", verdict, seen, means);
    match offered {
        Ok(ece) if ece.options != 0 => finding(
            Verdict::Seen,
            format!("offered: vendor {:#x}, options {:#x}", ece.vendor, ece.options),
            "planespray does not negotiate it, so these features stay off for lanes; programs that do may behave otherwise \
             on the same NIC",
        ),
        Ok(ece) => finding(
            Verdict::Seen,
            format!("asked for: vendor {:#x}, no options", ece.vendor),
            "there is nothing to negotiate on this queue pair",
        ),
        Err(e @ VerbsError::Unsupported { .. }) => finding(
            Verdict::Unknown,
            format!("cannot be read: {e}"),
            "planespray does not negotiate it; a libibverbs of rdma-core 31 or later can say",
        ),
        Err(e) => finding(Verdict::Seen, format!("not offered: {e}"), "there is nothing to negotiate"),
    }
}

fn order(qp: &Qp) -> Finding {
    let finding = |verdict, seen: &str, means: &str| Finding::new("order of placement", verdict, seen, means);
    match qp.places_writes_in_order() {
        Some(true) => finding(
            Verdict::Seen,
            "the driver promises that the bytes of a write are placed in order",
            "packets that arrive out of order are not placed as they come",
        ),
        Some(false) => finding(
            Verdict::Seen,
            "the driver does not promise that the bytes of a write are placed in order (one that does not know says the \
             same)",
            "planespray takes arrival from completions alone, so this is safe either way; programs that watch memory are \
             not",
        ),
        None => finding(
            Verdict::Unknown,
            "cannot be read: this libibverbs has no ibv_query_qp_data_in_order",
            "planespray takes arrival from completions alone, so this is safe either way",
        ),
    }
}

fn bond(device: &Device, port: &ChosenPort) -> Finding {
    let finding = |verdict, seen: String, means| Finding::new("bonding", verdict, seen, means);
    let netdev = device.ports.iter().find(|p| p.number == port.port).and_then(|p| p.netdev.as_ref());
    match netdev {
        Some(n) if !n.bond.is_empty() => finding(
            Verdict::Seen,
            format!("interface {} is a bond of {}", n.name, n.bond.join(", ")),
            "the NIC chooses the member for each queue pair, and a member that fails is its affair: use at least two lanes \
             for each member, and do not count the members as planes",
        ),
        Some(n) => finding(
            Verdict::Seen,
            format!("interface {} is no bond", n.name),
            "the port is one link: what fails on it, planespray sees",
        ),
        None => finding(
            Verdict::Unknown,
            "cannot be read: the port's interface is not known in this network namespace".into(),
            "if it is a bond, use at least two lanes for each member",
        ),
    }
}

fn adaptive_routing(device: &Device) -> Finding {
    let means = "where it is on, the fabric sprays packets by itself: then one data lane for each plane and class is enough \
                 (lanes_per_plane 1), or both would balance against each other";
    let seen = match (device.provider(), device.pci) {
        ("rxe", _) => {
            let means = "packets of a lane keep one path, so lanes are what spreads load";
            return Finding::new(
                "adaptive routing",
                Verdict::Seen,
                "none: soft-RoCE sends by the host's routes",
                means,
            );
        }
        ("mlx5", Some(pci)) => format!(
            "cannot be read from sysfs or verbs; as root, `mlxreg -d {pci} --reg_name ROCE_ACCEL --get` shows \
             adaptive_routing_forced_en"
        ),
        _ => "cannot be read from sysfs or verbs; ask the vendor's tool".to_owned(),
    };
    Finding::new("adaptive routing", Verdict::Unknown, seen, means)
}

fn hardware_planes() -> Finding {
    Finding::new(
        "plane balancing in hardware",
        Verdict::Unknown,
        "cannot be read: neither sysfs nor verbs has an attribute for it",
        "if this NIC spreads one queue pair over several planes by itself, its planes look like one port: use one lane for \
         each plane that planespray sees (lanes_per_plane 1), and leave plane failures to the NIC",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_not_invented() {
        let absent = ece(Err(VerbsError::Unsupported { device: "x".into(), what: "ibv_query_ece" }));
        assert_eq!(absent.verdict, Verdict::Unknown);
        let refused = VerbsError::Call { device: "x".into(), call: "ibv_query_ece", errno: libc::EOPNOTSUPP, hint: "" };
        assert!(ece(Err(refused)).seen.starts_with("not offered"));
        let on = ece(Ok(crate::verbs::Ece { vendor: 0x15b3, options: 0x10 }));
        assert!(on.seen.contains("0x15b3") && on.seen.contains("0x10"), "{on:?}");
        let planes = hardware_planes();
        assert!(planes.verdict == Verdict::Unknown && planes.means.contains("one lane"), "{planes:?}");
    }
}
