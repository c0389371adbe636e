//! What a fabric decides about its planes by itself, and what its operator decides.

use super::error::Error;
use super::fabric::Fabric;
use crate::engine::LogEntry;
use crate::lanes::PortId;

impl Fabric {
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
        let ports: Vec<PortId> =
            (0..).zip(&self.inner.ports).filter(|(_, p)| p.plane == plane).map(|(i, _)| PortId(i)).collect();
        if ports.is_empty() {
            let planes: Vec<u16> = self.inner.ports.iter().map(|p| p.plane).collect();
            return Err(Error::Config { what: format!("no plane {plane}; this fabric has {planes:?}") });
        }
        for port in ports {
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

    /// What was decided about lanes, ways and peers since entry number `from` (0 is the first), each with its evidence, and
    /// the number to ask with next time. The last 4,096 are kept.
    pub fn events(&self, from: u64) -> (Vec<LogEntry>, u64) {
        let core = self.inner.shared.lock();
        let (entries, next) = core.log().since(from);
        (entries.copied().collect(), next)
    }
}
