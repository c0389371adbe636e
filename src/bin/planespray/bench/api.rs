//! What `bench` uses of the library: its public face and nothing else.

pub(super) use planespray::{
    Buffer, Connection, Engine, Error, Fabric, FabricConfig, Fault, Health, JobKey, LaneStats, LogEntry, Outcome,
    Pending, PlaneFault, PlaneStats, Refused, RemoteWindow, SendOptions, Stats, UdpPort, Wait, WindowAccess,
};

#[cfg(test)]
pub(super) use planespray::Injected;
