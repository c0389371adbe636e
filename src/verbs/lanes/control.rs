//! The control half: lanes are made, connected and ended, and memory is lent.

use super::*;

/// The seam's word for what a device said.
fn refused(e: VerbsError) -> LaneError {
    let refusal = match &e {
        VerbsError::OutOfBounds { offset, len, size } => {
            return MemError::OutOfBounds { offset: *offset, len: *len, size: *size }.into();
        }
        VerbsError::Invalid { what, .. } => return LaneError::Invalid { what },
        VerbsError::MemlockTooSmall { .. } => DeviceRefusal::LockedMemory,
        VerbsError::QueuePairBudget { .. } => DeviceRefusal::QueuePairBudget,
        VerbsError::RegistrationsExhausted { .. } => DeviceRefusal::Exhausted,
        VerbsError::NoGidFor { .. }
        | VerbsError::PeerFamily { .. }
        | VerbsError::PeerLinkLayer { .. }
        | VerbsError::PeerUnreachable { .. } => DeviceRefusal::Unreachable,
        VerbsError::Call { errno, .. } => match *errno {
            libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ETIMEDOUT => DeviceRefusal::Unreachable,
            libc::ENOMEM | libc::ENOSPC => DeviceRefusal::Exhausted,
            _ => DeviceRefusal::Other,
        },
        _ => DeviceRefusal::Other,
    };
    LaneError::Device { refusal, message: e.to_string() }
}

impl VerbsLanes {
    /// Gives a lane that was just connected its source port, where the driver can set that. Its flow label says the same
    /// to devices that follow the annex's rule, and stays what counts where this fails.
    fn set_source_port(&mut self, id: LaneId) {
        let Some(lane) = find_mut(&mut self.lanes, id) else { return };
        let dev = &mut self.devices[lane.device];
        let (Some(mlx5), Some(qp)) = (&dev.mlx5, &mut lane.qp) else { return };
        if let Err(e) = qp.set_source_port(mlx5, source_port(lane.spec.entropy)) {
            tracing::warn!(device = dev.context.name(), "source ports follow the flow label from now on: {e}");
            dev.mlx5 = None;
        }
    }

    /// Says that a lane's MTU is not its port's, once for each that comes up.
    fn tell_mtu(&mut self, at: usize, peer: &LaneAddress, mtu: u32) {
        let (info, link) = (&self.ports[at], &mut self.links[at]);
        if mtu != info.mtu && link.lowered.replace(mtu) != Some(mtu) {
            let (port, own, addr) = (&info.name, info.mtu, peer.addr);
            tracing::info!("{port}: lanes to {addr} use RoCE MTU {mtu}, which the peer says; this port has {own}");
        }
    }
}

impl Control for VerbsLanes {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn ports(&self) -> &[PortInfo] {
        &self.ports
    }

    fn register(&mut self, region: &Region) -> Result<MrId, LaneError> {
        self.memory.register(region).map_err(refused)
    }

    fn deregister(&mut self, mr: MrId) -> bool {
        self.memory.deregister(mr)
    }

    fn open_window(
        &mut self,
        domain: Domain,
        mr: MrId,
        offset: u64,
        len: u64,
        access: WindowAccess,
    ) -> Result<Window, LaneError> {
        let domain = self.domain(domain);
        let mut places = Vec::with_capacity(self.links.len());
        let mut result = Ok(());
        for link in &self.links {
            match self.memory.enter(&self.devices[link.device].context, link.device, domain) {
                Ok(place) => places.push(place),
                Err(e) => {
                    result = Err(e);
                    break;
                }
            }
        }
        let opened = result.and_then(|()| self.memory.open_window(&places, mr, offset, len, access));
        for place in places {
            self.memory.leave(place);
        }
        opened.map_err(refused)
    }

    fn close_window(&mut self, window: &Window) -> bool {
        self.memory.close_window(window)
    }

    fn create(&mut self, spec: &LaneSpec) -> Result<LaneId, LaneError> {
        let link = self.links.get(usize::from(spec.port.0)).ok_or(LaneError::Invalid { what: "port" })?;
        if spec.send_depth == 0 {
            return Err(LaneError::Invalid { what: "send_depth" });
        }
        let (device, number) = (link.device, link.number);
        let limit = self.config.max_lanes;
        let index = match self.lanes.iter().position(|s| s.lane.is_none()) {
            Some(i) => i,
            None if self.lanes.len() < limit => {
                self.lanes.push(Slot { generation: 0, lane: None });
                self.lanes.len() - 1
            }
            None => return Err(LaneError::NoLanes { limit }),
        };
        let context = self.devices[device].context.clone();
        let permit = self.config.budget.take(context.name(), number).map_err(refused)?;
        let cq = self.queue(device, entries(spec)).map_err(refused)?;
        let place = self.memory.enter(&context, device, self.domain(spec.domain)).map_err(refused)?;
        let queue = &self.devices[device].cqs[cq].cq;
        let wanted = QpSpec {
            transport: Transport::Rc,
            send_depth: u32::from(spec.send_depth),
            receive_depth: u32::from(spec.receive_depth),
            inline: self.config.inline,
            batched: self.config.batched,
        };
        let made = match self.memory.pd(place) {
            Some(pd) => Qp::new(pd, queue, queue, &wanted).and_then(|mut qp| qp.init(number, 0).map(|()| qp)),
            None => Err(VerbsError::Invalid { what: "domain", value: place as u64, range: "one that is live" }),
        };
        let qp = match made {
            Ok(qp) => qp,
            Err(e) => {
                self.memory.leave(place);
                return Err(refused(e));
            }
        };
        let slot = &mut self.lanes[index];
        slot.generation = slot.generation.wrapping_add(1);
        let id = LaneId(u32::from(slot.generation) << 16 | index as u32);
        let psn = self.rng.u32(..) & 0xff_ffff;
        let lane = Lane::new(LaneParts { id, qp, spec: *spec, psn, device, cq, place, permit });
        self.devices[device].cqs[cq].used += lane.entries();
        slot.lane = Some(Box::new(lane));
        Ok(id)
    }

    fn address(&self, lane: LaneId) -> Result<LaneAddress, LaneError> {
        let lane = self.lane(lane)?;
        let port = self.ports.get(usize::from(lane.spec.port.0)).ok_or(LaneError::Invalid { what: "port" })?;
        Ok(LaneAddress {
            qpn: lane.qpn,
            psn: lane.psn,
            addr: port.addr,
            udp_port: ROCE_PORT,
            mtu: port.mtu,
            feedback_qpn: 0,
            feedback_secret: 0,
        })
    }

    fn connect(&mut self, id: LaneId, peer: &LaneAddress) -> Result<(), LaneError> {
        let lane = self.lane(id)?;
        let (spec, psn) = (lane.spec, lane.psn);
        if lane.mtu.is_some() || lane.failed {
            return Err(LaneError::Invalid { what: "lane state" });
        }
        let at = usize::from(spec.port.0);
        let info = self.ports.get(at).ok_or(LaneError::Invalid { what: "port" })?;
        peer::fits(info, peer).map_err(refused)?;
        let mtu = info.mtu.min(peer.mtu);
        let retry = self.retry;
        let mut index = self.links[at].sgid_index;
        loop {
            let route = self.route(&spec, &self.links[at], peer.addr);
            let lane = self.lane_mut(id).ok_or(LaneError::NoLane)?;
            let qp = lane.qp.as_mut().ok_or(LaneError::NoLane)?;
            let error = match qp.connect(&Peer { route, qpn: peer.qpn, psn: peer.psn, mtu }, psn, &retry) {
                Ok(()) => {
                    lane.mtu = Some(mtu);
                    self.set_source_port(id);
                    self.tell_mtu(at, peer, mtu);
                    return Ok(());
                }
                Err(e) => e,
            };
            // The index may have moved without anybody having taken the event yet.
            self.read_again(at);
            if self.links[at].sgid_index == index {
                return Err(refused(peer::explain(error, &self.ports[at], peer.addr)));
            }
            index = self.links[at].sgid_index;
        }
    }

    fn lane_mtu(&self, lane: LaneId) -> Option<u32> {
        self.lane(lane).ok()?.mtu
    }

    fn fence(&mut self, id: LaneId) -> Result<(), LaneError> {
        let lane = find_mut(&mut self.lanes, id).ok_or(LaneError::NoLane)?;
        lane.told = true;
        lane.stop(&mut self.backlog);
        Ok(())
    }

    fn destroy(&mut self, id: LaneId) -> Result<(), LaneError> {
        self.lane(id)?;
        let Some(mut lane) = self.lanes[id.index()].lane.take() else { return Err(LaneError::NoLane) };
        let counted = lane.qp.is_some() || !self.devices[lane.device].cqs[lane.cq].broken;
        // The queue pair goes before its protection domain may.
        lane.qp = None;
        self.backlog.retain(|c| c.lane != id);
        // What it left in its queue is taken out, so that others find the room they were promised.
        let mut swept = VecDeque::new();
        let Dev { cqs, clock, wake_due, armed, .. } = &mut self.devices[lane.device];
        let (lanes, events, backlog) = (&mut self.lanes, &mut self.events, &mut self.backlog);
        let shared = &mut cqs[lane.cq];
        if counted {
            shared.used -= lane.entries();
        }
        let now = self.idle_since;
        if !shared.broken {
            let most = shared.cq.capacity() as usize;
            let polled = shared.cq.poll(most, |wc| {
                let (id, receive) = Lane::split(wc.wr_id);
                let Some(lane) = find_mut(lanes, id) else { return };
                let at = match (clock.as_mut(), wc.timestamp) {
                    (Some(clock), Some(stamp)) => clock.completed(stamp, now),
                    _ => now,
                };
                let completion = lane.complete(wc, at);
                if let Some(c) = &completion
                    && c.status != Status::Success
                {
                    lane.tell(c.status, events);
                }
                swept.extend(completion);
                if !receive {
                    lane.settle(&mut swept);
                }
            });
            match polled {
                Ok(got) => *wake_due |= *armed && got > 0,
                Err(_) => shared.broken = true,
            }
        }
        backlog.extend(swept);
        self.memory.leave(lane.place);
        Ok(())
    }

    fn poll_event(&mut self) -> Option<LaneEvent> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        if std::mem::replace(&mut self.ask_events, false) {
            self.ask_for_events();
        }
        self.events.pop_front()
    }
}
