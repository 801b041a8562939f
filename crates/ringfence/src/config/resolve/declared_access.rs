//! What the program of a config entry may touch: its sandbox, the network and its side effects.
//!
//! The sandbox grants what is declared here and nothing else; `[mcp.<name>]` and `[upstream.<id>]`
//! declare it with the same keys.

use serde_json::{Value, json};

use crate::config::{ProfileSetting, SideEffect};

/// Access that an entry declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredAccess {
    /// Strength of its sandbox, as configured. See [`DeclaredAccess::effective_profile`].
    pub profile: ProfileSetting,
    /// It gets the host's whole network.
    pub allow_network: bool,
    /// Host names it may reach.
    pub allow_domains: Vec<String>,
    /// Addresses it may reach, `address:port`.
    pub allow_addresses: Vec<String>,
    /// Side effects that the sandbox does not prevent.
    pub side_effects: Vec<SideEffect>,
}

impl Default for DeclaredAccess {
    /// Returns the access of an entry that declares nothing.
    fn default() -> Self {
        DeclaredAccess {
            profile: ProfileSetting::Default,
            allow_network: false,
            allow_domains: Vec::new(),
            allow_addresses: Vec::new(),
            side_effects: Vec::new(),
        }
    }
}

impl DeclaredAccess {
    /// Returns whether it may have this effect.
    pub fn has_effect(&self, effect: SideEffect) -> bool {
        self.side_effects.contains(&effect) || effect == SideEffect::Network && self.has_network()
    }

    /// Returns whether it may reach anything on the network.
    pub fn has_network(&self) -> bool {
        self.allow_network || !self.allow_domains.is_empty() || !self.allow_addresses.is_empty()
    }

    /// Returns the effective profile, given the one under `[sandbox]`: `contained` if that is
    /// `contained` and the entry's own is `default`, for which there are no namespaces; otherwise
    /// the entry's own.
    pub fn effective_profile(&self, sandbox_profile: ProfileSetting) -> ProfileSetting {
        match (self.profile, sandbox_profile) {
            (ProfileSetting::Default, ProfileSetting::Contained) => ProfileSetting::Contained,
            (profile, _) => profile,
        }
    }

    /// Returns why a human has to approve calls whatever the config says.
    pub fn high_risk_reason(&self) -> Option<&'static str> {
        let writes_files = self.has_effect(SideEffect::FilesystemWrite);
        let uses_network = self.has_effect(SideEffect::Network);
        match (self.profile, writes_files, uses_network) {
            (ProfileSetting::None, _, _) => Some("It runs without a sandbox."),
            (_, true, true) => Some("It may change files in the workspace and use the network."),
            (_, true, false) => Some("It may change files in the workspace."),
            (_, false, true) => Some("It may use the network."),
            (_, false, false) => None,
        }
    }

    /// Returns its part of a fingerprint that trust is bound to.
    pub fn trust_fingerprint(&self) -> Value {
        let effects: Vec<&str> = self.side_effects.iter().map(|effect| effect.name()).collect();
        json!({
            "profile": self.profile.name(), "allow_network": self.allow_network,
            "allow_domains": self.allow_domains, "allow_addresses": self.allow_addresses,
            "effects": effects,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_the_sandbox_has_a_reason_to_ask() {
        let access = DeclaredAccess::default;
        assert_eq!(access().high_risk_reason(), None);
        let writing = vec![SideEffect::FilesystemWrite];
        for (access, word) in [
            (DeclaredAccess { profile: ProfileSetting::None, ..access() }, "without a sandbox"),
            (DeclaredAccess { allow_network: true, ..access() }, "may use the network"),
            (DeclaredAccess { allow_domains: vec!["a.b".to_owned()], ..access() }, "use the net"),
            (DeclaredAccess { allow_addresses: vec!["::1".to_owned()], ..access() }, "use the net"),
            (DeclaredAccess { side_effects: vec![SideEffect::Network], ..access() }, "use the net"),
            (DeclaredAccess { side_effects: writing.clone(), ..access() }, "change files"),
            (
                DeclaredAccess { side_effects: writing, allow_network: true, ..access() },
                "workspace and use the network",
            ),
        ] {
            let reason = access.high_risk_reason().unwrap_or_default();
            assert!(reason.contains(word), "{access:?}: {reason}");
        }
    }

    #[test]
    fn the_default_profile_is_contained_where_there_are_no_namespaces() {
        use ProfileSetting::{Contained, Default, None};
        for (own, general, effective) in [
            (Default, Default, Default),
            (Default, Contained, Contained),
            (Default, None, Default),
            (None, Contained, None),
            (Contained, None, Contained),
        ] {
            let access = DeclaredAccess { profile: own, ..DeclaredAccess::default() };
            assert_eq!(access.effective_profile(general), effective, "{own:?} under {general:?}");
        }
    }
}
