//! Whether lanes can choose their UDP source ports, which is how they choose their paths.

use std::path::Path;

use super::rig::{Rig, Trouble, patient, write, write_once};
use super::{Finding, Verdict};
use crate::mem::Access;
use crate::verbs::{self, MLX5_VARIABLE, Mlx5, Qp, driver_of};

/// Bytes of a trial.
const LEN: u32 = 4096;
/// The lanes that are tried.
const ENTROPIES: [u16; 4] = [1, 2, 777, 0x3fff];

/// Connects by several flow labels and writes through each.
pub(super) fn flow_label(rig: &Rig) -> Finding {
    const SUBJECT: &str = "flow label";
    match trial(rig, |_, _| Ok(())) {
        Err(trouble) => Finding::broken(SUBJECT, &trouble),
        Ok(()) => Finding::proof(
            SUBJECT,
            true,
            format!("{} connections by flow labels of their own carried a write each", ENTROPIES.len()),
            "lanes ask for their UDP source ports by flow label. Whether the device heeds it shows only on the wire: \
             capture udp port 4791 at the switch while `planespray bench` runs; there is one source port for each lane, \
             or else all lanes of a plane share one path",
        ),
    }
}

/// Sets source ports by libmlx5, where the writing device is one of mlx5.
pub(super) fn source_port(rig: &Rig) -> Finding {
    let finding = |seen: String, means| Finding::new("source port", Verdict::Seen, seen, means);
    let by_label = "the flow label is what is left to choose paths by";
    let driver = driver_of(rig.peer.context.sysfs());
    if driver.as_deref() != Some("mlx5") {
        let driver = driver.as_deref().unwrap_or("unknown");
        return finding(
            format!("not offered: planespray can set it by libmlx5 alone, and the driver is {driver}"),
            by_label,
        );
    }
    let path = std::env::var_os(MLX5_VARIABLE).filter(|p| !p.is_empty());
    let mlx5 = match Mlx5::load(path.as_deref().map(Path::new)) {
        Ok(mlx5) => mlx5,
        Err(e) => return finding(format!("not offered: {e}"), by_label),
    };
    match trial(rig, |qp, entropy| Ok(qp.set_source_port(&mlx5, verbs::source_port(entropy))?)) {
        Ok(()) => finding(
            format!("offered: libmlx5 set {} source ports, and a write arrived through each", ENTROPIES.len()),
            "lanes set their UDP source ports to 0xc000 | entropy, and so choose their paths",
        ),
        Err(trouble) => finding(format!("offered by libmlx5, but: {trouble}"), by_label),
    }
}

fn trial(rig: &Rig, mut after: impl FnMut(&mut Qp, u16) -> Result<(), Trouble>) -> Result<(), Trouble> {
    let window = rig.subject.memory(LEN as usize, Access::LOCAL_WRITE.and(Access::REMOTE_WRITE))?;
    let source = rig.peer.memory(LEN as usize, Access::LOCAL_READ)?;
    let cq = rig.subject.queue(64)?;
    let mut peer_cq = rig.peer.queue(64)?;
    for entropy in ENTROPIES {
        let mut taker = rig.subject.connection(&cq)?;
        let mut writer = rig.peer.connection(&peer_cq)?;
        rig.connect(&mut writer, &mut taker, entropy, &patient()?)?;
        after(&mut writer, entropy)?;
        write_once(&rig.peer, &mut writer, &mut peer_cq, &write(0, &source, &window, 0, LEN))?;
    }
    Ok(())
}
