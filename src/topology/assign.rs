//! On which rail and plane each port is.

use std::collections::BTreeSet;

use super::file::TopologyFile;
use super::hca::HcaEntry;
use super::sysfs::{Device, PciAddress, Port};

/// A port's rail and plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Which NIC of the node.
    pub rail: u16,
    /// Which fabric.
    pub plane: u16,
    /// What said so; the list or file if it gave one of the two.
    pub source: PlaceSource,
}

/// What gave a rail or plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlaceSource {
    /// The list of HCAs.
    List,
    /// The topology file.
    File,
    /// The machine itself: memory node, PCI address, port.
    Automatic,
}

/// A port to be placed.
#[derive(Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub(super) device: &'a Device,
    pub(super) port: &'a Port,
    /// The list's entry for it.
    pub(super) entry: Option<&'a HcaEntry>,
}

/// The card that a port is on. Functions of one card differ only in their last number, virtual functions count as their
/// physical one's. Devices without PCI address (soft-RoCE) are together the last card.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Card {
    Pci { numa: u16, domain: u32, bus: u8, device: u8 },
    Virtual,
}

impl Candidate<'_> {
    fn pci(&self) -> Option<PciAddress> {
        self.device.physical.or(self.device.pci)
    }

    fn card(&self) -> Card {
        match self.pci() {
            Some(PciAddress { domain, bus, device, .. }) => {
                Card::Pci { numa: self.device.numa.unwrap_or(u16::MAX), domain, bus, device }
            }
            None => Card::Virtual,
        }
    }
}

/// Places the candidates, which come in the order of the list.
///
/// By itself a rail is a card, in order of memory node and PCI address; a plane is a physical port of the card, in order of
/// PCI function and port number. Each soft-RoCE device is a plane, in the order given. The topology file overrides
/// that, and the list both.
pub(super) fn assign(candidates: &[Candidate<'_>], file: Option<&TopologyFile>) -> Vec<Place> {
    let cards: Vec<Card> = candidates.iter().map(Candidate::card).collect::<BTreeSet<_>>().into_iter().collect();
    let mut automatic = vec![(0u16, 0u16); candidates.len()];
    for (rail, card) in cards.iter().enumerate() {
        let mut members: Vec<usize> = (0..candidates.len()).filter(|&i| candidates[i].card() == *card).collect();
        if *card != Card::Virtual {
            members.sort_by_key(|&i| (candidates[i].pci().map(|p| p.function), candidates[i].port.number));
        }
        // Several functions of a card, or a physical and its virtual ones, may share a physical port.
        let mut seen: Vec<Option<&str>> = Vec::new();
        for i in members {
            let netdev = candidates[i].port.netdev.as_ref();
            let physical = netdev.and_then(|n| n.physical_port.as_deref());
            let plane = seen.iter().position(|s| s.is_some() && *s == physical).unwrap_or_else(|| {
                seen.push(physical);
                seen.len() - 1
            });
            automatic[i] = (rail as u16, plane as u16);
        }
    }
    let place = |(candidate, (rail, plane)): (&Candidate<'_>, (u16, u16))| {
        let netdev = candidate.port.netdev.as_ref().map(|n| n.name.as_str());
        let listed = candidate.entry.map_or((None, None), |e| (e.rail, e.plane));
        let filed = file.and_then(|f| f.find(&candidate.device.name, candidate.port.number, netdev));
        let filed = filed.map_or((None, None), |p| (p.rail, p.plane));
        let source = match (listed, filed) {
            ((None, None), (None, None)) => PlaceSource::Automatic,
            ((None, None), _) => PlaceSource::File,
            _ => PlaceSource::List,
        };
        Place { rail: listed.0.or(filed.0).unwrap_or(rail), plane: listed.1.or(filed.1).unwrap_or(plane), source }
    };
    candidates.iter().zip(automatic).map(place).collect()
}
