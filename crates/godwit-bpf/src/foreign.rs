//! The data path of another node's agent on the same interface: the machine had another name.

use std::fs;
use std::io;
use std::os::fd::AsFd as _;

use libbpf_rs::{MapHandle, MapInfo};

use crate::earlier::Earlier;
use crate::pin::{PinDir, PinError};
use crate::stale::cookie_of;
use crate::tcx;

/// What makes it an agent's, and not a director's.
const LINKS: [&str; 2] = ["tap", "gate"];

/// What the folder of a director's pins ends with.
pub const OF_DIRECTOR: &str = "-director";

/// The node that has something pinned.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    /// Its agent has.
    Agent(String),
    /// It is a director.
    Director(String),
}

impl Whose {
    fn of(folder: &str, pins: &PinDir) -> Option<Self> {
        let (_, node) = folder.split_once('-')?;
        // An agent's node may have such a name.
        let director = node.strip_suffix(OF_DIRECTOR);
        let director = director.filter(|_| !LINKS.iter().all(|name| pins.link(name).exists()));
        let agent = || Self::Agent(node.to_owned());
        Some(director.map_or_else(agent, |node| Self::Director(node.to_owned())))
    }
}

/// What the agent of another node has pinned, in this network namespace.
#[derive(Debug)]
pub struct Foreign {
    node: String,
    pins: PinDir,
    ifindex: Option<u32>,
}

impl Foreign {
    /// Those on an interface; `own` is the folder of the node itself.
    ///
    /// # Errors
    /// As [`PinDir::open`].
    pub fn beside(own: &str, ifindex: u32) -> Result<Vec<Self>, PinError> {
        let here = cookie_of(own);
        let all = PinDir::all()?.into_iter();
        let others = all.filter(|(name, _)| name != own && cookie_of(name) == here);
        let found = others.filter_map(|(name, pins)| Self::read(&name, pins));
        Ok(found.filter(|it| it.ifindex == Some(ifindex)).collect())
    }

    /// Who has something pinned in the network namespace with that cookie.
    ///
    /// # Errors
    /// As [`PinDir::open`].
    pub fn in_namespace(cookie: u64) -> Result<Vec<Whose>, PinError> {
        let all = PinDir::all()?.into_iter();
        let here = all.filter(|(name, _)| cookie_of(name) == Some(cookie));
        let mut found: Vec<_> = here
            .filter_map(|(name, pins)| Whose::of(&name, &pins))
            .collect();
        found.sort();
        Ok(found)
    }

    /// Whether no other agent, nor a director, has anything pinned in this network namespace.
    /// `own` is the folder of the node itself. Mounts nothing.
    ///
    /// # Errors
    /// If there is no bpffs, or it can't be read.
    pub fn nobody_beside(own: &str) -> io::Result<bool> {
        let here = cookie_of(own);
        let names = PinDir::names()?;
        Ok(names
            .iter()
            .all(|name| name == own || cookie_of(name) != here))
    }

    /// That of a node, by the name of its folder.
    ///
    /// # Errors
    /// As [`PinDir::existing`].
    pub fn named(folder: &str) -> Result<Option<Self>, PinError> {
        let Some(pins) = PinDir::existing(folder)? else {
            return Ok(None);
        };
        // What may not be opened is there all the same.
        for path in LINKS.map(|name| pins.link(name)) {
            match tcx::pinned(&path) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(PinError::at(path, error));
                }
                Ok(_) | Err(_) => {}
            }
        }
        Ok(Self::read(folder, pins))
    }

    fn read(folder: &str, pins: PinDir) -> Option<Self> {
        let (_, node) = folder.split_once('-')?;
        let links = LINKS.map(|name| tcx::pinned(&pins.link(name)).ok());
        let [Some(tap), Some(_)] = links else {
            return None;
        };
        Some(Self {
            node: node.to_owned(),
            ifindex: tcx::interface_of(tap.as_fd()),
            pins,
        })
    }

    /// Whose it is.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// The interface that it is on, if that is still there.
    pub const fn ifindex(&self) -> Option<u32> {
        self.ifindex
    }

    /// Whether another process that this one may look into drives it: an agent lives.
    pub fn is_driven(&self) -> bool {
        !self.drivers().is_empty()
    }

    /// The other processes that have its events open, of those that this one may look into.
    pub fn drivers(&self) -> Vec<u32> {
        let Some(id) = self.events_id() else {
            return Vec::new();
        };
        let line = format!("map_id:\t{id}");
        let own = std::process::id();
        let has_it = |pid: &u32| {
            let files = fs::read_dir(format!("/proc/{pid}/fdinfo"));
            files
                .into_iter()
                .flatten()
                .flatten()
                .filter_map(|file| fs::read_to_string(file.path()).ok())
                .any(|text| text.lines().any(|it| it == line))
        };
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        processes
            .filter_map(|it| it.file_name().to_str()?.parse().ok())
            .filter(|pid| *pid != own)
            .filter(has_it)
            .collect()
    }

    fn events_id(&self) -> Option<u32> {
        let events = MapHandle::from_pinned_path(self.pins.map("gw_events")).ok()?;
        Some(MapInfo::new(events.as_fd()).ok()?.info.id)
    }

    /// What its maps say, whatever version it is of.
    pub fn maps(&self) -> Earlier {
        Earlier::new(self.pins.clone())
    }

    /// Its folder becomes that of another node; false: that one has its own.
    ///
    /// # Errors
    /// If it can't be renamed.
    pub fn rename(&self, folder: &str) -> Result<bool, PinError> {
        if PinDir::existing(folder)?.is_some() {
            return Ok(false);
        }
        self.pins.rename(folder)?;
        Ok(true)
    }

    /// What is pinned.
    pub fn into_pins(self) -> PinDir {
        self.pins
    }
}
