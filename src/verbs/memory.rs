//! Registrations, protection domains and windows of the whole backend.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::batch;
use super::device::Context;
use super::error::VerbsError;
use super::mr::Mr;
use super::pd::Pd;
use crate::lanes::{Domain, Local, MAX_PORTS, MrId, Window, WindowAccess};
use crate::mem::{Access, Region};

/// What is lent to which device, for whom.
pub(super) struct Memory {
    relaxed: bool,
    places: Vec<Option<Place>>,
    registrations: Vec<Option<Registration>>,
    windows: BTreeMap<(u64, [u32; MAX_PORTS]), OpenWindow>,
    empty_windows: u64,
}

/// One domain on one device.
struct Place {
    device: usize,
    domain: Domain,
    pd: Pd,
    users: u32,
}

struct Registration {
    region: Region,
    /// By place.
    mrs: Vec<Option<Mr>>,
}

struct OpenWindow {
    places: Vec<usize>,
    _mrs: Vec<Mr>,
}

impl Memory {
    pub(super) fn new(relaxed: bool) -> Memory {
        Memory { relaxed, places: Vec::new(), registrations: Vec::new(), windows: BTreeMap::new(), empty_windows: 0 }
    }

    /// The place of a domain on a device, made if need be, with all that is registered. [`Memory::leave`] undoes it.
    pub(super) fn enter(&mut self, context: &Arc<Context>, device: usize, domain: Domain) -> Result<usize, VerbsError> {
        let known = |p: &Option<Place>| p.as_ref().is_some_and(|p| p.device == device && p.domain == domain);
        if let Some(at) = self.places.iter().position(known) {
            if let Some(place) = &mut self.places[at] {
                place.users += 1;
            }
            return Ok(at);
        }
        let pd = Pd::new(context)?;
        let mut made = Vec::new();
        for registration in &self.registrations {
            made.push(match registration {
                Some(r) => lend(&pd, &r.region, self.relaxed)?,
                None => None,
            });
        }
        let at = self.places.iter().position(Option::is_none).unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        for (registration, mr) in self.registrations.iter_mut().zip(made) {
            if let Some(r) = registration {
                put(&mut r.mrs, at, mr);
            }
        }
        self.places[at] = Some(Place { device, domain, pd, users: 1 });
        Ok(at)
    }

    /// One user less of a place; the last one ends it, and all registrations there.
    pub(super) fn leave(&mut self, place: usize) {
        let Some(Some(p)) = self.places.get_mut(place) else { return };
        p.users -= 1;
        if p.users == 0 {
            for r in self.registrations.iter_mut().flatten() {
                put(&mut r.mrs, place, None);
            }
            self.places[place] = None;
        }
    }

    /// The protection domain of a place.
    pub(super) fn pd(&self, place: usize) -> Option<&Pd> {
        self.places.get(place)?.as_ref().map(|p| &p.pd)
    }

    /// Registers a region at every place.
    pub(super) fn register(&mut self, region: &Region) -> Result<MrId, VerbsError> {
        let mut mrs = Vec::with_capacity(self.places.len());
        for place in &self.places {
            mrs.push(match place {
                Some(p) => lend(&p.pd, region, self.relaxed)?,
                None => None,
            });
        }
        let index = self.registrations.iter().position(Option::is_none).unwrap_or_else(|| {
            self.registrations.push(None);
            self.registrations.len() - 1
        });
        self.registrations[index] = Some(Registration { region: region.clone(), mrs });
        Ok(MrId(index as u32))
    }

    /// Ends a registration at every place.
    pub(super) fn deregister(&mut self, mr: MrId) -> bool {
        self.registrations.get_mut(mr.0 as usize).and_then(Option::take).is_some()
    }

    /// Bytes of a registration, as queue pairs of a place name them; `None` if they are not inside one.
    #[inline]
    pub(super) fn local(&self, place: usize, local: &Local) -> Option<batch::Local<'_>> {
        let registration = self.registrations.get(local.mr.0 as usize)?.as_ref()?;
        let mr = registration.mrs.get(place)?.as_ref()?;
        mr.check(local.offset, local.len)?;
        Some(batch::Local { mr, offset: local.offset, len: local.len })
    }

    /// Opens a window at the places of the ports, which are in `at`, by port.
    pub(super) fn open_window(
        &mut self,
        at: &[usize],
        mr: MrId,
        offset: u64,
        len: u64,
        access: WindowAccess,
    ) -> Result<Window, VerbsError> {
        let registration = self.registrations.get(mr.0 as usize).and_then(Option::as_ref);
        let unknown = VerbsError::Invalid { what: "registration", value: u64::from(mr.0), range: "one that is live" };
        let region = &registration.ok_or(unknown)?.region;
        let size = region.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(VerbsError::OutOfBounds { offset, len, size });
        }
        let mut places = at.to_vec();
        places.sort_unstable();
        places.dedup();
        let mut window = Window { addr: 0, len, keys: [0; MAX_PORTS] };
        let mut mrs = Vec::new();
        if len == 0 {
            // Devices do not register nothing, and ask for no key where nothing is written.
            self.empty_windows += 1;
            window.addr = self.empty_windows;
        } else {
            for &place in &places {
                let pd = self.pd(place).ok_or(VerbsError::Invalid {
                    what: "domain",
                    value: place as u64,
                    range: "one that is live",
                })?;
                let mr = Mr::register(pd, region, offset, len, rights(access), self.relaxed)?;
                window.addr = mr.addr();
                for (key, _) in window.keys.iter_mut().zip(at).filter(|(_, p)| **p == place) {
                    *key = mr.rkey();
                }
                mrs.push(mr);
            }
        }
        for &place in &places {
            if let Some(Some(p)) = self.places.get_mut(place) {
                p.users += 1;
            }
        }
        self.windows.insert((window.addr, window.keys), OpenWindow { places, _mrs: mrs });
        Ok(window)
    }

    /// Closes a window: the device has forgotten its keys when this returns.
    pub(super) fn close_window(&mut self, window: &Window) -> bool {
        let Some(open) = self.windows.remove(&(window.addr, window.keys)) else { return false };
        let places = open.places.clone();
        drop(open);
        for place in places {
            self.leave(place);
        }
        true
    }
}

/// A registration of a whole region for our own work requests; none of nothing.
fn lend(pd: &Pd, region: &Region, relaxed: bool) -> Result<Option<Mr>, VerbsError> {
    if region.is_empty() {
        return Ok(None);
    }
    Mr::register(pd, region, 0, region.len() as u64, Access::LOCAL_WRITE, relaxed).map(Some)
}

fn put(mrs: &mut Vec<Option<Mr>>, at: usize, mr: Option<Mr>) {
    if mrs.len() <= at {
        mrs.resize_with(at + 1, || None);
    }
    mrs[at] = mr;
}

fn rights(access: WindowAccess) -> Access {
    let mut rights = Access::LOCAL_WRITE;
    for (asked, right) in [
        (access.write, Access::REMOTE_WRITE),
        (access.read, Access::REMOTE_READ),
        (access.atomic, Access::REMOTE_ATOMIC),
    ] {
        if asked {
            rights = rights.and(right);
        }
    }
    rights
}
