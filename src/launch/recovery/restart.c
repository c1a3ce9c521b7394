/* Pauses between the starts of one rank: see restart.h. */
#include "launch/recovery/restart.h"

static const int64_t second_ns = 1000000000;

wefti_restart_rule wefti_restart_rule_of(int64_t join_ns) {
    wefti_restart_rule rule = {second_ns, 60 * second_ns, 60 * second_ns};
    if (rule.longest_ns > join_ns / 4) rule.longest_ns = join_ns / 4;
    return rule;
}

void wefti_restart_started(wefti_restart *r, int64_t now_ns) {
    r->state = WEFTI_RESTART_RUNS;
    r->since_ns = now_ns;
}

static int64_t pause_of(const wefti_restart_rule *rule, int32_t failures) {
    int64_t pause_ns = failures > 1 ? rule->first_ns : 0;
    for (int32_t i = 2; i < failures && pause_ns < rule->longest_ns; i++) pause_ns *= 2;
    return pause_ns < rule->longest_ns ? pause_ns : rule->longest_ns;
}

int64_t wefti_restart_lost(wefti_restart *r, const wefti_restart_rule *rule, bool failed,
                           int64_t now_ns) {
    if (r->state != WEFTI_RESTART_RUNS) return r->due_ns > now_ns ? r->due_ns - now_ns : 0;
    if (now_ns - r->since_ns >= rule->steady_ns) r->failures = 0;
    if (failed && r->failures < INT32_MAX) r->failures++;
    const int64_t pause_ns = failed ? pause_of(rule, r->failures) : 0;
    r->state = WEFTI_RESTART_PAUSES;
    r->due_ns = now_ns + pause_ns;
    return pause_ns;
}

bool wefti_restart_is_due(const wefti_restart *r, int64_t now_ns) {
    return r->state != WEFTI_RESTART_PAUSES || now_ns >= r->due_ns;
}
