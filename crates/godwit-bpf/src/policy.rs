//! Programs of the user's own, that say where connections begin and which server each
//! request is best served by (`gw_policy.h`, docs/policies.md).
//!
//! Each is a program by itself, which the kernel verifies on its own; `tap` hands a packet to
//! it by a tail call and gets it back by another one. The array that has them all is pinned,
//! and lasts as long as the data path.

use std::os::fd::{AsFd as _, AsRawFd as _};

use libbpf_rs::{MapHandle, Object, ObjectBuilder, OpenMapMut, ProgramMut, ProgramType};
use thiserror::Error;

use crate::maps::steering::SteeringTable;
use crate::maps::{MapError, TypedMap};

/// Programs of a server at a time: `GW_POLICIES`.
pub const MAX_POLICIES: usize = 4;

/// The maps that a program shares with the data path, by their names.
const SHARED: [&str; 2] = ["gw_policy_calls", "gw_policy_programs"];

/// Those that come with Godwit, in the order of build.rs.
const BUILT_IN: [(&str, &[u8]); 3] = [
    (
        "by_class",
        include_bytes!(concat!(env!("OUT_DIR"), "/by_class.bpf.o")),
    ),
    (
        "by_cookie",
        include_bytes!(concat!(env!("OUT_DIR"), "/by_cookie.bpf.o")),
    ),
    (
        "least_loaded",
        include_bytes!(concat!(env!("OUT_DIR"), "/least_loaded.bpf.o")),
    ),
];

/// A compiled program, not loaded yet.
#[derive(Clone, PartialEq, Eq)]
pub struct Policy {
    name: String,
    object: Vec<u8>,
}

impl std::fmt::Debug for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Policy")
            .field("name", &self.name)
            .field("len", &self.object.len())
            .finish()
    }
}

/// Why a program of the user's own is not in place. What was there before still is.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// It is no object that clang makes of such a program.
    #[error("policy {name} is no eBPF object (clang -O2 -g -target bpf -c makes one)")]
    Object {
        /// Which.
        name: String,
        /// What libbpf said.
        #[source]
        source: libbpf_rs::Error,
    },
    /// It is an object, and none that `GW_POLICY` has made.
    #[error("policy {name} is not one GW_POLICY (ctx, head) {{ ... }} of godwit_policy.h")]
    Program {
        /// Which.
        name: String,
    },
    /// The kernel's verifier refuses it; its words are in the log.
    #[error("the kernel refuses policy {name}")]
    Refused {
        /// Which.
        name: String,
        /// What libbpf said.
        #[source]
        source: libbpf_rs::Error,
    },
    /// It can't be put in its place.
    #[error(transparent)]
    Map(#[from] MapError),
}

impl Policy {
    /// One that comes with Godwit.
    pub fn built_in(name: &str) -> Option<Self> {
        let (_, object) = BUILT_IN.iter().find(|(known, _)| *known == name)?;
        Some(Self::new(name, object.to_vec()))
    }

    /// The names of those that come with Godwit.
    pub fn built_in_names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// What was compiled, by the name that people know it by.
    pub fn new(name: &str, object: Vec<u8>) -> Self {
        Self {
            name: name.to_owned(),
            object,
        }
    }

    /// What people know it by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is an object with one such program. The kernel is not asked.
    ///
    /// # Errors
    /// If it is not.
    pub fn judge(&self) -> Result<(), PolicyError> {
        let mut builder = ObjectBuilder::default();
        let open = builder.open_memory(&self.object);
        let open = open.map_err(|source| PolicyError::Object {
            name: self.name.clone(),
            source,
        })?;
        let kinds: Vec<_> = open.progs().map(|program| program.prog_type()).collect();
        let names: Vec<_> = open.maps().map(|map| map.name().to_owned()).collect();
        let is_there = |shared: &&str| names.iter().any(|name| name == shared);
        if kinds == [ProgramType::SchedCls] && SHARED.iter().all(is_there) {
            return Ok(());
        }
        Err(PolicyError::Program {
            name: self.name.clone(),
        })
    }

    /// Loads it; it is not called yet.
    fn load(&self, places: &Places) -> Result<Object, PolicyError> {
        let name = || self.name.clone();
        let malformed = |source| PolicyError::Object {
            name: name(),
            source,
        };
        let refused = |source| PolicyError::Refused {
            name: name(),
            source,
        };
        let mut builder = ObjectBuilder::default();
        let mut open = builder.open_memory(&self.object).map_err(malformed)?;
        let kinds: Vec<_> = open.progs().map(|program| program.prog_type()).collect();
        let mut found = 0;
        for mut map in open.maps_mut() {
            if let Some(shared) = places.shared(&map) {
                map.reuse_fd(shared.as_fd()).map_err(refused)?;
                found += 1;
            }
        }
        if kinds != [ProgramType::SchedCls] || found != SHARED.len() {
            return Err(PolicyError::Program { name: name() });
        }
        open.load().map_err(refused)
    }
}

/// Where `tap` finds them.
pub(crate) struct Places {
    calls: MapHandle,
    programs: MapHandle,
    numbers: TypedMap<u32, u32>,
}

impl Places {
    pub(crate) fn new(calls: MapHandle, programs: [MapHandle; 2]) -> Self {
        let [programs, numbers] = programs;
        Self {
            calls,
            programs,
            numbers: TypedMap::new(numbers, SHARED[1]),
        }
    }

    fn shared(&self, map: &OpenMapMut<'_>) -> Option<&MapHandle> {
        let name = map.name();
        [&self.calls, &self.programs]
            .into_iter()
            .zip(SHARED)
            .find_map(|(shared, known)| (name == known).then_some(shared))
    }

    fn put(&self, number: u32, program: &ProgramMut<'_>) -> Result<(), MapError> {
        let descriptor = program.as_fd().as_raw_fd();
        self.numbers.update(&number, &descriptor.cast_unsigned())
    }

    /// Has all of them called, in their order, and `tap` again by each. Those of an earlier
    /// agent that have no successor are forgotten. No share may have a program meanwhile:
    /// numbers mean others afterwards.
    ///
    /// # Errors
    /// If one is no policy, or the kernel refuses it. Nothing is changed then.
    pub(crate) fn fill(
        &self,
        policies: &[Policy],
        tap: &ProgramMut<'_>,
        steering: &SteeringTable,
    ) -> Result<(), PolicyError> {
        let loaded: Result<Vec<_>, _> = policies.iter().map(|it| it.load(self)).collect();
        let loaded = loaded?;
        steering.forget_programs()?;
        for (number, object) in (1..).zip(&loaded) {
            for program in object.progs_mut() {
                self.put(number, &program)?;
            }
        }
        self.put(0, tap)?;
        let used = u32::try_from(policies.len()).unwrap_or(u32::MAX);
        for number in self.numbers.keys()? {
            // Keys are all that there are, empty places too.
            if number > used && self.numbers.lookup(&number).is_ok_and(|it| it.is_some()) {
                self.numbers.delete(&number)?;
            }
        }
        Ok(())
    }
}
