//! What devices say by themselves: ports that come and go, addresses that move, queue pairs that fail.
#![forbid(unsafe_code)]

use super::events::AsyncEvent;
use super::lanes::VerbsLanes;
use crate::lanes::{LaneEvent, PortId, Status};

impl VerbsLanes {
    pub(super) fn ask_for_events(&mut self) {
        for d in 0..self.devices.len() {
            while let Some(event) = self.devices[d].events.next_event() {
                self.take_event(d, event);
            }
        }
    }

    fn take_event(&mut self, device: usize, event: AsyncEvent) {
        match event {
            AsyncEvent::PortActive { port } => self.each_link(device, port, |lanes, i| {
                lanes.read_again(i);
                lanes.events.push_back(LaneEvent::PortUp(PortId(i as u8)));
            }),
            AsyncEvent::PortError { port } => {
                self.each_link(device, port, |lanes, i| {
                    lanes.events.push_back(LaneEvent::PortDown(PortId(i as u8)));
                });
            }
            AsyncEvent::GidChange { port } => self.each_link(device, port, |lanes, i| lanes.read_again(i)),
            AsyncEvent::QpFatal { qpn } => self.queue_pair_failed(device, qpn, Status::Other),
            AsyncEvent::QpAccess { qpn } => self.queue_pair_failed(device, qpn, Status::RemoteAccess),
            AsyncEvent::QpRequest { qpn } => self.queue_pair_failed(device, qpn, Status::RemoteInvalidRequest),
            // Polling the queue tells which one it was.
            AsyncEvent::CqError => {}
            AsyncEvent::DeviceFatal => {
                for lane in self.lanes.iter_mut().filter_map(|s| s.lane.as_mut()).filter(|l| l.device == device) {
                    lane.cause.get_or_insert(Status::Other);
                    lane.abandon(&mut self.backlog);
                    lane.tell(Status::Other, &mut self.events);
                }
                for i in 0..self.links.len() {
                    if self.links[i].device == device {
                        self.events.push_back(LaneEvent::PortDown(PortId(i as u8)));
                    }
                }
            }
            AsyncEvent::Other(_) => {}
        }
    }

    fn each_link(&mut self, device: usize, port: u8, mut f: impl FnMut(&mut Self, usize)) {
        for i in 0..self.links.len() {
            if self.links[i].device == device && self.links[i].number == port {
                f(self, i);
            }
        }
    }

    /// Reads a port's MTU and the index of its address again; what cannot be read stays as it was.
    pub(super) fn read_again(&mut self, i: usize) {
        let (Some(link), Some(info)) = (self.links.get_mut(i), self.ports.get_mut(i)) else { return };
        let context = &self.devices[link.device].context;
        if let Ok(index) = context.gid_index(link.number, link.addr) {
            link.sgid_index = index;
        }
        if let Ok(attributes) = context.port(link.number)
            && attributes.mtu != 0
        {
            info.mtu = attributes.mtu;
        }
    }

    fn queue_pair_failed(&mut self, device: usize, qpn: u32, status: Status) {
        let lanes = self.lanes.iter_mut().filter_map(|s| s.lane.as_mut());
        let Some(lane) = lanes.into_iter().find(|l| l.device == device && l.qpn == qpn) else { return };
        if lane.told {
            return;
        }
        lane.cause.get_or_insert(status);
        lane.stop(&mut self.backlog);
        // A completion will say more precisely why, if one is due.
        if !lane.has_work() {
            lane.tell(status, &mut self.events);
        }
    }
}
