//! What people are told of a director ([`crate::directed`]).

use std::collections::BTreeMap;

use godwit_core::MonoTime;
use godwit_core::director::{Roster, Unheard};

use super::backends::Backends;
use super::tables::Tables;
use crate::config::{Config, Hook};
use crate::directed::{BackendReport, DirectedReport, DirectorReport};

impl DirectorReport {
    pub(super) fn new(
        config: &Config,
        (backends, roster): (&Backends, &Roster),
        tables: &Tables,
        (unheard, now): (&Unheard, MonoTime),
        holds: bool,
    ) -> Self {
        let own = config.director.as_ref();
        Self {
            via: tables.programs.via().as_str().into(),
            hook: own.map_or(Hook::Xdp, |own| own.hook).to_string(),
            holds,
            starting: roster.is_starting(),
            deaf: roster.is_deaf(),
            behind: tables.is_behind(),
            table_size: own.map_or(0, |own| own.table_size.get()),
            backends: backends
                .iter()
                .map(|(id, known)| BackendReport {
                    name: known.name.to_string(),
                    state: roster.state(id).as_str().into(),
                    there: roster.is_there(id),
                    drained: roster.is_drained(id),
                    cut_off: unheard.is_cut_off(id, now),
                    weight: known.weight,
                    mac: known.mac.map(|mac| mac.to_string()),
                })
                .collect(),
            services: config
                .directed()
                .enumerate()
                .map(|(number, service)| {
                    let mut report = DirectedReport {
                        name: service.name.to_string(),
                        addresses: service.addresses.iter().map(ToString::to_string).collect(),
                        slots: BTreeMap::new(),
                        nobody: 0,
                        paused: backends
                            .iter()
                            .filter(|(id, _)| roster.is_paused(number, *id))
                            .map(|(_, known)| known.name.to_string())
                            .collect(),
                        mixed: 0,
                    };
                    for slot in roster.slots(number) {
                        match slot.now.and_then(|id| backends.get(id)) {
                            Some(known) => {
                                *report.slots.entry(known.name.to_string()).or_default() += 1;
                            }
                            None => report.nobody += 1,
                        }
                        report.mixed += u32::from(slot.mixed);
                    }
                    report
                })
                .collect(),
        }
    }
}
