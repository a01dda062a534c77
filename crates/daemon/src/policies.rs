//! What the scheduler is told by flags: who runs when, and whether prefixes are cached.

use paceline_scheduler::{Alignment, CacheSecret, Policies};

use crate::Failure;
use crate::flags::{Flags, PlacementLoad, SchedulingPolicy, Switch};
use crate::settings::usage;

/// How even the prompts of a group's ranks are when they run together.
const EVEN_PERCENT: u32 = 90;

/// The policies of a scheduler.
pub(crate) fn policies(flags: &Flags) -> Policies {
    let by_priority = flags.scheduling_policy == Some(SchedulingPolicy::Priority);
    let delay_steps = flags.prefill_alignment_steps.unwrap_or(0);
    let default = Policies::default();
    Policies {
        priority: flags.scheduling_policy != Some(SchedulingPolicy::Fcfs),
        priority_preempts: by_priority,
        skips_max: flags.max_skips.unwrap_or(0),
        long_prefill_tokens: flags.long_prefill_token_threshold.unwrap_or(0),
        preemptions_free: flags.max_free_preemptions.unwrap_or(default.preemptions_free),
        watermark_blocks: flags.watermark_blocks.unwrap_or(default.watermark_blocks),
        prefix_affinity: flags.prefix_affinity != Some(Switch::Off),
        load_in_tokens: flags.placement_load != Some(PlacementLoad::Requests),
        gap_tokens: flags.max_prefill_tokens_beside_decodes.unwrap_or(0),
        alignment: (delay_steps > 0).then_some(Alignment { delay_steps, even_percent: EVEN_PERCENT }),
    }
}

/// Whether the KV of earlier prompts is kept.
///
/// # Errors
/// [`Failure::Usage`] when both names of the flag are given and contradict each other.
pub(crate) fn caches_prefixes(flags: &Flags) -> Result<bool, Failure> {
    match (flags.enable_prefix_caching, flags.no_enable_prefix_caching) {
        (Some(on), Some(off)) if on == off => {
            Err(usage(format!("--enable-prefix-caching is {on}, and --no-enable-prefix-caching is {off}: give one")))
        }
        (on, off) => Ok(on.or(off.map(|off| !off)).unwrap_or(true)),
    }
}

/// The secret of the prefix cache's keys, drawn anew at every start; nothing when the cache is off.
pub(crate) fn prefix_cache(flags: &Flags) -> Option<CacheSecret> {
    let caches = caches_prefixes(flags).unwrap_or(true);
    caches.then(|| CacheSecret::new(rand::random(), rand::random()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_off_unless_asked_for() {
        let flags = Flags::default();
        assert_eq!(policies(&flags), Policies::default());
        let fcfs = Flags { scheduling_policy: Some(SchedulingPolicy::Fcfs), ..Flags::default() };
        assert!(!policies(&fcfs).priority);
        let flags = Flags {
            scheduling_policy: Some(SchedulingPolicy::Priority),
            prefill_alignment_steps: Some(20),
            ..Flags::default()
        };
        let chosen = policies(&flags);
        assert!(chosen.priority_preempts && chosen.alignment.is_some());
        let others = Flags {
            placement_load: Some(PlacementLoad::Requests),
            prefix_affinity: Some(Switch::Off),
            watermark_blocks: Some(3),
            max_free_preemptions: Some(0),
            ..Flags::default()
        };
        let chosen = policies(&others);
        assert!(!chosen.load_in_tokens && !chosen.prefix_affinity);
        assert_eq!((chosen.watermark_blocks, chosen.preemptions_free), (3, 0));
    }

    #[test]
    fn prefixes_are_cached_unless_either_name_says_no() {
        let flags = |enable_prefix_caching, no_enable_prefix_caching| Flags {
            enable_prefix_caching,
            no_enable_prefix_caching,
            ..Flags::default()
        };
        for (on, off, expected) in [
            (None, None, true),
            (Some(true), None, true),
            (Some(false), None, false),
            (None, Some(true), false),
            (None, Some(false), true),
            (Some(false), Some(true), false),
        ] {
            let flags = flags(on, off);
            assert_eq!(prefix_cache(&flags).is_some(), expected, "{on:?} {off:?}");
            assert_eq!(prefix_cache(&flags) == prefix_cache(&flags), !expected, "never the same secret twice");
        }
        let error = caches_prefixes(&flags(Some(true), Some(true))).expect_err("both").to_string();
        assert!(error.contains("--enable-prefix-caching is true, and --no-enable-prefix-caching is true"), "{error}");
    }
}
