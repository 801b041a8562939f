//! `ringfence audit prune`: removes old log files, or shows which ones it would remove.

use std::io::{self, Write};
use std::path::Path;

use super::{escape_line, format_count, format_files_and_records, format_time, parse_since};
use crate::audit::prune::{KeepReason, PruneReport, plan_prune, prune_log};
use crate::base::Result;

/// Value of `by` in the prune record.
const PRUNED_BY: &str = "ringfence audit prune";

/// Flags of `ringfence audit prune`.
#[derive(Debug, Clone, clap::Args)]
pub struct AuditPruneArgs {
    /// Remove files whose records are all older than this: an age (90d, 12w) or a UTC time
    /// (2026-11-15, 2026-11-15T21:40:03Z).
    #[arg(long, value_name = "WHEN", value_parser = parse_since)]
    before: String,
    /// Show what would be removed, without removing anything.
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(
    args: &AuditPruneArgs,
    root: &Path,
    out: &mut dyn Write,
) -> Result<io::Result<u8>> {
    let report = match args.dry_run {
        true => plan_prune(root, &args.before)?,
        false => prune_log(root, &args.before, PRUNED_BY)?,
    };
    Ok(print_report(args, &report, out).map(|()| 0))
}

fn print_report(
    args: &AuditPruneArgs,
    report: &PruneReport,
    out: &mut dyn Write,
) -> io::Result<()> {
    for file in &report.removed {
        let (first, last) = (format_time(&file.first), format_time(&file.last));
        writeln!(out, "{}  {:>8}  {first} to {last}", escape_line(&file.file), file.records)?;
    }
    let (would, suffix) = match args.dry_run {
        true => ("would be ", "; nothing was removed"),
        false => ("", ""),
    };
    if report.leftovers > 0 {
        let leftovers = format_count(report.leftovers as u64, "file");
        writeln!(out, "{leftovers} of an interrupted prune {would}removed{suffix}")?;
    }
    let before = format_time(&args.before);
    match report.removed.len() as u64 {
        0 => writeln!(out, "nothing to prune before {before}")?,
        files => {
            let records = report.removed.iter().map(|file| file.records).sum();
            writeln!(
                out,
                "{} before {before} {would}pruned{suffix}",
                format_files_and_records(files, records)
            )?;
        }
    }
    if let Some((file, reason)) = &report.kept_from {
        writeln!(out, "kept: {}, {}", escape_line(file), describe_reason(*reason))?;
    }
    out.flush()
}

fn describe_reason(reason: KeepReason) -> &'static str {
    match reason {
        KeepReason::Newest => "the newest file",
        KeepReason::InUse => "which is in use, and files opened after it",
        KeepReason::NotOldEnough => "which has newer records, and files opened after it",
    }
}
