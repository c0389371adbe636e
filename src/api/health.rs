//! What a fabric decides about its planes by itself, and what its operator decides.

use super::error::Error;
use super::fabric::Fabric;
use crate::engine::LogEntry;
use crate::lanes::PortId;
use crate::time::Time;

/// What is done to a plane at this end's sockets, for trying out what failures do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlaneFault {
    /// Its packets are lost in both directions, and nobody is told.
    Cut,
    /// The same, and the port's carrier is reported lost.
    CutWithEvent,
    /// Its queue pairs go to ERR at this end, as those of a device that is reset. Needs no [`PlaneFault::Heal`].
    Break,
    /// They get through again, and if its carrier was reported lost, it is reported back.
    Heal,
}

impl Fabric {
    /// Plays a failure of a plane, or its end. Returns when, by the clock of [`Fabric::events`].
    ///
    /// # Errors
    /// [`Error::Config`] if the fabric has no such plane, or it does not run on the embedded engine (but for
    /// [`PlaneFault::Break`]).
    pub fn inject(&self, plane: u16, fault: PlaneFault) -> Result<Time, Error> {
        let ports = self.ports_of(plane)?;
        let mut core = self.inner.shared.lock();
        let now = self.inner.shared.now();
        for port in ports {
            if fault == PlaneFault::Break {
                core.break_port(port);
                continue;
            }
            let Some(udp) = core.lanes_mut().udp_mut() else {
                let what =
                    "planes can be cut on the embedded engine only; on a NIC use its switch, or drain the plane".into();
                return Err(Error::Config { what });
            };
            udp.set_cut(port, fault != PlaneFault::Heal);
            if fault != PlaneFault::Cut {
                core.port_event(now, port, fault == PlaneFault::Heal);
            }
        }
        Ok(now)
    }

    /// Puts nothing more on a plane, for maintenance: what is under way on it ends as always, peers do the same, and nobody
    /// sees an error.
    ///
    /// # Errors
    /// [`Error::Config`] if the fabric has no such plane, or a connection has no other plane that works.
    pub fn drain(&self, plane: u16) -> Result<(), Error> {
        self.set_drained(plane, true)
    }

    /// Uses a drained plane again.
    ///
    /// # Errors
    /// [`Error::Config`] if the fabric has no such plane.
    pub fn undrain(&self, plane: u16) -> Result<(), Error> {
        self.set_drained(plane, false)
    }

    fn set_drained(&self, plane: u16, on: bool) -> Result<(), Error> {
        for port in self.ports_of(plane)? {
            let now = self.inner.shared.now();
            if !self.inner.shared.lock().drain(now, port, on) {
                let what = format!(
                    "plane {plane} is the last one that works for a connection; undrain or repair another first"
                );
                return Err(Error::Config { what });
            }
        }
        Ok(())
    }

    fn ports_of(&self, plane: u16) -> Result<Vec<PortId>, Error> {
        let ports: Vec<PortId> =
            (0..).zip(&self.inner.ports).filter(|(_, p)| p.plane == plane).map(|(i, _)| PortId(i)).collect();
        if ports.is_empty() {
            let planes: Vec<u16> = self.inner.ports.iter().map(|p| p.plane).collect();
            return Err(Error::Config { what: format!("no plane {plane}; this fabric has {planes:?}") });
        }
        Ok(ports)
    }

    /// What was decided about lanes, ways and peers since entry number `from` (0 is the first), each with its evidence, and
    /// the number to ask with next time. The last 4,096 are kept.
    pub fn events(&self, from: u64) -> (Vec<LogEntry>, u64) {
        let core = self.inner.shared.lock();
        let (entries, next) = core.log().since(from);
        (entries.copied().collect(), next)
    }
}
