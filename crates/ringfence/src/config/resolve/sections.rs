//! Resolves the small sections of the config: approval, limits, audit, browser and HTTP.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::picker::{Layers, SettingPicker};
use super::{ConfigFlags, MIB};
use crate::base::suggest::suggest_name;
use crate::base::{Error, Result};
use crate::config::env::{self, ProcessEnv};
use crate::config::parse::raw;
use crate::config::{
    ApprovalSettings, BrowserSettings, CallLimits, HttpSettings, OwnToolsApproval, ToolSet,
};

fn own_tools_text(value: &raw::OwnTools) -> String {
    match value {
        raw::OwnTools::Auto => "auto".to_owned(),
        raw::OwnTools::Always => "always".to_owned(),
        raw::OwnTools::Named(patterns) => {
            patterns.iter().map(|one| one.0.as_str()).collect::<Vec<_>>().join(", ")
        }
    }
}

pub fn resolve_approval(
    picker: &mut SettingPicker<'_>,
    file: &raw::ApprovalSection,
    defaults: &raw::ApprovalSection,
) -> Result<ApprovalSettings> {
    let expiry = Layers::file_only(file.expiry_s, defaults.expiry_s);
    let own_tools = Layers::file_only(file.own_tools.clone(), defaults.own_tools.clone());
    Ok(ApprovalSettings {
        expiry: Duration::from_secs(
            picker.pick("approval.expiry_s", expiry, |value| value.0.to_string())?.0.0,
        ),
        allows_terminal: picker
            .pick(
                "approval.terminal",
                Layers::file_only(file.terminal, defaults.terminal),
                bool::to_string,
            )?
            .0,
        own_tools: match picker.pick("approval.own_tools", own_tools, own_tools_text)?.0 {
            raw::OwnTools::Auto => OwnToolsApproval::Never,
            raw::OwnTools::Always => OwnToolsApproval::Always,
            raw::OwnTools::Named(patterns) => {
                OwnToolsApproval::Named(patterns.into_iter().map(|one| one.0).collect())
            }
        },
    })
}

pub fn resolve_limits(
    picker: &mut SettingPicker<'_>,
    file: &raw::LimitsSection,
    defaults: &raw::LimitsSection,
) -> Result<CallLimits> {
    macro_rules! number {
        ($field:ident) => {{
            let layers = Layers::file_only(file.$field, defaults.$field);
            picker
                .pick(concat!("limits.", stringify!($field)), layers, |value| value.0.to_string())?
                .0
                .0
        }};
    }
    Ok(CallLimits {
        timeout_ceiling: Duration::from_millis(number!(timeout_ms)),
        grace: Duration::from_millis(number!(grace_ms)),
        output_file_bytes: number!(output_file_mb) * MIB,
        message_bytes: usize::try_from(number!(message_mb) * MIB).unwrap_or(usize::MAX),
        audit_rotate_bytes: number!(audit_rotate_mb) * MIB,
    })
}

pub fn resolve_audit_retention(
    picker: &mut SettingPicker<'_>,
    file: &raw::AuditSection,
) -> Option<Duration> {
    let layers = Layers::file_only(file.keep.clone(), None);
    picker
        .pick_optional("audit.keep", layers, |retention: &raw::RetentionSpan| {
            retention.text.clone()
        })
        .map(|(retention, _)| retention.span)
}

pub fn resolve_browser(
    picker: &mut SettingPicker<'_>,
    env: &ProcessEnv,
    file: &raw::BrowserSection,
    defaults: &raw::BrowserSection,
) -> Result<BrowserSettings> {
    let program = file.program.as_deref().map(|path| picker.resolve_file_path(path)).transpose()?;
    let idle = Layers::file_only(file.idle_s, defaults.idle_s);
    Ok(BrowserSettings {
        program: picker
            .pick_optional("browser.program", Layers::file_only(program, None), |path: &PathBuf| {
                path.display().to_string()
            })
            .map(|(path, _)| path),
        search_path: env
            .get(env::PATH)
            .map(|path| std::env::split_paths(path).collect())
            .unwrap_or_default(),
        idle_timeout: Duration::from_secs(
            picker.pick("browser.idle_s", idle, |value| value.0.to_string())?.0.0,
        ),
    })
}

pub fn resolve_http(
    picker: &mut SettingPicker<'_>,
    flags: &ConfigFlags,
    listen: Option<SocketAddr>,
    file: &raw::HttpSection,
    defaults: &raw::HttpSection,
) -> Result<HttpSettings> {
    let texts = |names: &Option<Vec<raw::HostName>>| {
        names.as_ref().map(|names| names.iter().map(|name| name.0.clone()).collect())
    };
    let origins = |names: &Option<Vec<raw::OriginName>>| {
        names.as_ref().map(|names| names.iter().map(|name| name.0.clone()).collect())
    };
    let join = |names: &Vec<String>| names.join(", ");
    let hosts = Layers::file_only(texts(&file.allowed_hosts), texts(&defaults.allowed_hosts));
    let origins =
        Layers::file_only(origins(&file.allowed_origins), origins(&defaults.allowed_origins));
    let insecure = Layers {
        flag: flags.insecure_no_auth.then_some((true, "--insecure-no-auth")),
        ..Layers::file_only(None, Some(false))
    };
    let public_url = Layers::file_only(file.public_url.as_ref().map(|url| url.0.clone()), None);
    Ok(HttpSettings {
        listen,
        public_url: picker
            .pick_optional("http.public_url", public_url, String::clone)
            .map(|(url, _)| url),
        allowed_hosts: picker.pick("http.allowed_hosts", hosts, join)?.0,
        allowed_origins: picker.pick("http.allowed_origins", origins, join)?.0,
        insecure_no_auth: picker.pick("http.insecure_no_auth", insecure, bool::to_string)?.0,
    })
}

pub fn parse_tools(
    text: Option<&str>,
    source: &'static str,
) -> Result<Option<(ToolSet, &'static str)>> {
    let Some(text) = text else { return Ok(None) };
    if let Some(tools) = ToolSet::ALL.iter().find(|tools| tools.name() == text) {
        return Ok(Some((*tools, source)));
    }
    let names: Vec<&str> = ToolSet::ALL.iter().map(|tools| tools.name()).collect();
    let hint = match suggest_name(text, &names) {
        Some(suggestion) => format!("Did you mean `{suggestion}`?"),
        None => format!("Use {source} with one of {}.", names.join(", ")),
    };
    Err(Error::invalid_arguments(format!("{source} does not name a known set of tools"))
        .with_hint(hint))
}
