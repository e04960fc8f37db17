//! Which test holds each scenario that was distilled from public reports about similar systems.
//! A scenario is one example of a kind; the test named here is about the kind.

use std::collections::BTreeSet;
use std::path::Path;

/// Scenario and the test that holds it, as `file::test`.
const HELD: &[(&str, &str)] = &[
    ("R51", "poison::a_row_that_cannot_be_read_is_parked"),
    ("R54", "poison::a_row_that_cannot_be_read_is_parked"),
    ("R55", "enqueue::odd_characters_arrive_unchanged_or_are_refused"),
    ("R56", "poison::mixed_shapes_are_listed"),
    ("R58", "limits::a_body_without_end_takes_no_memory"),
    ("R59", "limits::payloads_of_every_size_up_to_the_limit_arrive_and_larger_ones_are_refused"),
    ("R61", "src/core/key.rs::every_vector_is_met_bit_by_bit"),
    ("R62", "src/core/canonical/tests.rs::python_prints_the_same_or_refuses_as_well"),
    ("R63", "enqueue::large_integers_keep_every_digit"),
    ("R65", "enqueue::a_brought_key_is_measured_in_bytes"),
    ("R66", "conflict::tenants_do_not_meet"),
    ("R67", "conflict::a_brought_key_stands_for_one_content"),
    ("R69", "conflict::asking_again_tells_where_it_stands"),
    ("R71", "retries::a_huge_retry_after_is_capped_and_zero_keeps_the_backoff"),
    ("R72", "retries::a_date_in_retry_after_is_obeyed_and_garbage_keeps_the_backoff"),
    ("R73", "retries::an_extreme_date_in_retry_after_is_capped_or_ignored"),
    ("R159", "secrets::no_secret_is_logged_stored_or_told"),
    ("R162", "secrets::a_redirect_to_another_host_takes_nothing_there"),
    ("R163", "secrets::the_environment_does_not_change_where_intents_go"),
    ("R164", "secrets::a_certificate_that_nobody_signed_gets_nothing"),
    ("R165", "flow::a_downstream_that_is_silent_ends_by_the_time_out_and_holds_nobody_up"),
    ("R167", "flow::the_configured_time_is_the_one_in_force"),
    ("R01", "crash::killed_between_request_and_response_sends_again_with_the_same_key"),
    ("R02", "relay::an_outcome_waits_for_the_lock"),
    ("R04", "claim::of_two_claimers_one_wins_each_row"),
    ("R05", "claim::rows_that_wait_hold_no_lease"),
    ("R08", "claim::rows_are_found_by_state_not_by_id"),
    ("R09", "crash::killed_between_request_and_response_sends_again_with_the_same_key"),
    ("R10", "breaker::a_person_pauses_and_resumes"),
    ("R11", "crash::nothing_is_lost_or_doubled_in_a_crowd_under_fire"),
    ("R12", "contention::a_handler_that_never_returns_loses_its_row"),
    ("R15", "contention::no_lease_is_left_behind_by_failures"),
    ("R16", "conflict::asking_again_while_it_is_being_sent"),
    ("R17", "contention::retries_survive_restarts"),
    ("R18", "contention::leases_of_the_dead_are_taken_back_however_the_endpoint_is_spelled"),
    ("R19", "contention::leases_of_the_dead_are_taken_back_however_the_endpoint_is_spelled"),
    ("R20", "claim::a_lost_lease_costs_one_attempt"),
    ("R21", "late::a_late_success_is_kept_while_another_attempt_is_on_the_way"),
    ("R24", "relay::the_lease_of_a_live_worker_is_renewed"),
    ("R25", "contention::one_outcome_a_row_where_recovery_and_completion_collide"),
    ("R26", "claim::a_relay_is_configured_with_care"),
    ("R27", "claim::of_two_claimers_one_wins_each_row"),
    ("R28", "claim::a_lease_too_short_for_an_attempt_is_given_back"),
    ("R29", "contention::leases_are_renewed_while_every_worker_spins_and_others_write"),
    ("R31", "contention::leases_are_renewed_while_every_worker_spins_and_others_write"),
    ("R47", "flow::failing_intents_do_not_fill_the_batch"),
    ("R48", "relay::a_slow_operation_does_not_starve_another"),
    ("R50", "flow::a_delay_is_not_slept_through_by_a_worker"),
    ("R74", "record::an_outcome_that_cannot_be_written_is_kept"),
    ("R76", "retries::a_permanent_refusal_is_asked_for_once"),
    ("R77", "retries::a_passing_refusal_is_not_final"),
    ("R79", "src/core/backoff.rs::no_delay_exceeds_the_cap"),
    ("R80", "retries::being_put_off_does_not_count_as_failing"),
    ("R81", "flow::intents_that_failed_together_do_not_come_back_together"),
    ("R94", "relay::many_short_runs_send_everything_once"),
    ("R95", "relay::what_comes_during_the_stop_is_sent_by_the_next_start"),
    ("R96", "claim::a_row_deleted_under_its_worker_is_no_panic"),
    ("R97", "relay::a_panic_is_an_outcome_and_the_worker_survives"),
    ("R98", "relay::a_panic_is_an_outcome_and_the_worker_survives"),
    ("R100", "contention::a_panic_inside_a_transaction_leaves_no_lock"),
    ("R101", "transaction::more_transactions_than_connections_do_not_wait_for_each_other"),
    ("R102", "contention::a_draining_relay_lets_callers_write"),
    ("R103", "contention::a_draining_relay_lets_callers_write"),
    ("R106", "transaction::a_deferred_transaction_under_contention"),
    ("R107", "transaction::check_then_enqueue_from_many_threads"),
    ("R113", "transaction::rolled_back_to_a_savepoint"),
    ("R114", "transaction::errors_leave_the_callers_savepoints_as_found"),
    ("R116", "contention::a_handler_whose_own_commit_fails_is_not_a_success"),
    ("R118", "contention::a_repair_script_that_runs_on_after_an_error_harms_nothing"),
    ("R111", "record::what_is_told_of_a_batch_is_what_the_file_holds"),
    ("R158", "record::what_is_told_of_a_batch_is_what_the_file_holds"),
    ("R170", "retries::one_attempt_is_one_request"),
    ("R171", "again::while_nobody_knows_the_same_ask_is_the_same_intent"),
    ("R172", "retries::as_many_requests_are_sent_as_attempts_are_allowed"),
    ("R173", "again::what_differs_from_try_to_try_does_not_make_another_action"),
    ("R174", "again::a_step_that_is_run_again_gets_the_first_receipt"),
    ("R175", "again::arguments_that_drift_are_a_conflict_and_no_second_effect"),
    ("R42", "order::a_retry_of_the_head_holds_its_followers"),
    ("R43", "order::an_outage_in_the_middle_does_not_mix_them"),
    ("R45", "order::the_order_is_that_of_ids_not_of_clocks"),
    ("R149", "order::keys_that_span_shards_keep_their_order"),
    ("R83", "replay::thousands_at_once_and_twice_in_a_row"),
    ("R83", "replay::two_people_at_once_replay_each_row_once"),
    ("R84", "replay::a_filter_narrows_it"),
    ("R86", "replay::an_outage_is_made_good_by_one_command"),
    ("R88", "replay::every_way_back_goes_through_the_one_claim"),
    ("R89", "retries::every_attempt_sends_the_same_bytes_over_restarts_and_replay"),
    ("R91", "cancel::what_is_cancelled_on_the_way_ends_as_its_attempt_does"),
    ("R92", "cancel::what_kills_its_process_can_be_stopped"),
    ("R92", "crash::a_row_that_kills_its_process_can_be_cancelled"),
];

/// Every scenario about content, HTTP, delivery, unknown outcomes and order; those about locks and
/// savepoints; and those about replaying and cancelling.
const ALL: &[&str] = &[
    // content
    "R51", "R54", "R55", "R56", "R58", "R59", "R61", "R62", "R63", "R65", "R66", "R67", "R69",
    // HTTP
    "R71", "R72", "R73", "R159", "R162", "R163", "R164", "R165", "R167", // delivery
    "R01", "R02", "R04", "R05", "R08", "R09", "R10", "R11", "R12", "R15", "R16", "R17", "R18",
    "R19", "R20", "R21", "R24", "R25", "R26", "R27", "R28", "R29", "R31", "R47", "R48", "R50",
    "R74", "R76", "R77", "R79", "R80", "R81", "R94", "R95", "R96", "R97", "R98", "R100",
    // SQLite: busy, deferred begin, savepoint, rollback leaves row, pool deadlock
    "R101", "R102", "R103", "R106", "R107", "R113", "R114", "R116", "R118",
    // unknown outcomes
    "R111", "R158", "R170", "R171", "R172", "R173", "R174", "R175", // order
    "R42", "R43", "R45", "R149", // operators: replay and cancel
    "R83", "R84", "R86", "R88", "R89", "R91", "R92",
];

#[test]
fn every_scenario_is_held_by_a_test_that_exists() {
    let held: BTreeSet<&str> = HELD.iter().map(|(case, _)| *case).collect();
    let missing: Vec<_> = ALL.iter().filter(|case| !held.contains(*case)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    for (case, test) in HELD {
        let (file, name) = test.split_once("::").expect("file::test");
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = if file.contains('/') { file.into() } else { format!("tests/it/{file}.rs") };
        let text = std::fs::read_to_string(root.join(&path)).expect(&path);
        let (before, _) = text.split_once(&format!("fn {name}(")).unwrap_or_else(|| {
            panic!("{case}: {path} has no test {name}");
        });
        let attributes = before.rsplit("\n\n").next().unwrap_or(before);
        assert!(
            attributes.contains("#[test]") || before.trim_end().ends_with("proptest! {"),
            "{case}: {test} is no test"
        );
    }
}
