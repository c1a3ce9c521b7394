/* Pauses between the starts of one rank, and how many a job may have: see restart.h. */
#include "recovery/restart.h"

#include <string.h>

#include "base/clock.h"
#include "base/memory.h"

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

int64_t wefti_restart_lost(wefti_restart *r, const wefti_restart_rule *rule, int64_t now_ns) {
    if (r->state != WEFTI_RESTART_RUNS) return r->due_ns > now_ns ? r->due_ns - now_ns : 0;
    if (now_ns - r->since_ns >= rule->steady_ns) r->failures = 0;
    if (r->failures < INT32_MAX) r->failures++;
    const int64_t pause_ns = pause_of(rule, r->failures);
    r->state = WEFTI_RESTART_PAUSES;
    r->due_ns = now_ns + pause_ns;
    return pause_ns;
}

bool wefti_restart_is_due(const wefti_restart *r, int64_t now_ns) {
    return r->state != WEFTI_RESTART_PAUSES || now_ns >= r->due_ns;
}

/* --- the budget --- */

wefti_restart_budget wefti_restart_budget_of(int32_t most, double seconds) {
    return (wefti_restart_budget){
        .most = most, .window_ns = wefti_ns_of_seconds(seconds, WEFTI_RESTART_WINDOW_SECONDS)};
}

void wefti_restart_budget_free(wefti_restart_budget *b) {
    wefti_free(b->entry);
    b->entry = NULL;
    b->count = b->room = 0;
}

/* The first entry that counts. */
static int64_t first_within(const wefti_restart_budget *b, int64_t now_ns) {
    int64_t first = 0;
    while (first < b->count && now_ns - b->entry[first].at_ns >= b->window_ns) first++;
    return first;
}

int32_t wefti_restart_used(const wefti_restart_budget *b, int64_t now_ns) {
    const int64_t first = first_within(b, now_ns);
    int32_t used = 0;
    for (int64_t i = first; i < b->count && used < INT32_MAX; i++)
        used += i == first || b->entry[i].cause != b->entry[i - 1].cause;
    return used;
}

void wefti_restart_went_on(wefti_restart_budget *b) {
    b->went_on = true;
}

/* Whether a failure has the cause of the last entry. */
static bool has_last_cause(const wefti_restart_budget *b, int32_t number, int64_t now_ns) {
    const int64_t last = b->count - 1;
    if (last < 0 || b->went_on || number == WEFTI_RESTART_NOBODY) return false;
    if (now_ns - b->entry[last].at_ns >= second_ns) return false;
    for (int64_t i = last; i >= 0 && b->entry[i].cause == b->entry[last].cause; i--)
        if (b->entry[i].number == number || b->entry[i].number == WEFTI_RESTART_NOBODY)
            return false;
    return true;
}

static int64_t cause_of(const wefti_restart_budget *b, int32_t number, int64_t now_ns) {
    if (b->count == 0) return 0;
    return b->entry[b->count - 1].cause + !has_last_cause(b, number, now_ns);
}

bool wefti_restart_may(const wefti_restart_budget *b, int32_t number, int64_t now_ns) {
    return has_last_cause(b, number, now_ns) || wefti_restart_used(b, now_ns) < b->most;
}

bool wefti_restart_take(wefti_restart_budget *b, int32_t number, int64_t now_ns) {
    const int64_t past = first_within(b, now_ns), cause = cause_of(b, number, now_ns);
    if (!wefti_restart_may(b, number, now_ns)) return false;
    b->count -= past;
    if (past > 0) memmove(b->entry, b->entry + past, (size_t)b->count * sizeof *b->entry);
    if (WEFT_GROW(b->entry, b->count, b->room) < 0) return false;
    b->entry[b->count++] = (wefti_restart_entry){now_ns, cause, number};
    b->went_on = false;
    b->all++;
    return true;
}

void wefti_restart_forget(wefti_restart_budget *b, int32_t number) {
    int64_t kept = 0;
    for (int64_t i = 0; i < b->count; i++)
        if (b->entry[i].number != number) b->entry[kept++] = b->entry[i];
    b->count = kept;
}

/* Of the ranks [first, first + count), with the failure of `number` at this time. */
static int32_t row_within(const wefti_restart_budget *b, int32_t number, int32_t first,
                          int32_t count, int64_t now_ns, int64_t *out_ns) {
    const int64_t apart_ns = 120 * second_ns;
    int64_t since_ns = now_ns, cause = cause_of(b, number, now_ns);
    int32_t row = 1;
    for (int64_t i = b->count - 1; i >= 0; i--) {
        const wefti_restart_entry *e = &b->entry[i];
        if (e->number < first || e->number >= first + count) continue;
        if (since_ns - e->at_ns > apart_ns) break;
        row += e->cause != cause;
        cause = e->cause;
        since_ns = e->at_ns;
    }
    *out_ns = now_ns - since_ns;
    return row;
}

int32_t wefti_restart_row(const wefti_restart_budget *b, int32_t number, int64_t now_ns,
                          int64_t *out_ns) {
    return row_within(b, number, number, 1, now_ns, out_ns);
}

int32_t wefti_restart_leaves_out(const wefti_restart_budget *b, int32_t number, int32_t first,
                                 int32_t count, int64_t now_ns, int64_t *out_ns) {
    const int32_t row = row_within(b, number, first, count, now_ns, out_ns);
    const int32_t used = wefti_restart_used(b, now_ns) + !has_last_cause(b, number, now_ns);
    const bool last = row > 1 && used >= b->most;
    return last || row >= WEFTI_RESTART_KEEPS_FAILING ? row : 0;
}
