/* Whether a process runs what the others of its world run.
 *
 * Two jobs may call one scheduler: a port that both were given, torchrun's variables without a name
 * of the job. What a process says of its settings and its data decides then, before it has a seat.
 * The first one that was seated counts, but the process that hosts the scheduler, and those that
 * its launcher has started, count more.
 *
 * A refused process is not of this job. So the seat stays free, and the launcher of the process, if
 * another one has it, may speak for no rank from then on. A process that comes for the seat of a
 * lost one, and has a launcher of this job, is compared by the ranks themselves. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "launch/scheduler/state.h"

/* --- launchers of other jobs --- */

static void refuse_launcher(wefti_scheduler *s, wefti_client *c, const char *why) {
    wefti_client_refuse(s, c, WEFT_E_MISMATCH, WEFT_RANK_NONE,
                        "launcher process %lld at %s is of another job%s%s",
                        (long long)c->launcher.pid, c->address, why ? ": " : "", why ? why : "");
}

bool wefti_alike_launcher(wefti_scheduler *s, wefti_client *c) {
    const wefti_registration *said = &c->launcher;
    for (int64_t i = 0; i < s->alike.count; i++) {
        if (s->alike.launchers[i].launcher != said->launcher) continue;
        refuse_launcher(s, c, s->alike.launchers[i].why);
        return false;
    }
    if (!strcmp(said->job, s->job)) return true;
    (void)snprintf(s->alike.refusal, sizeof s->alike.refusal,
                   "launcher process %lld at %s is refused, as it is of job '%.200s', and this is "
                   "the scheduler of job '%.200s' (WEFT_JOB)",
                   (long long)said->pid, c->address, said->job, s->job);
    wefti_scheduler_note(s, "%s", s->alike.refusal);
    wefti_client_refuse(s, c, WEFT_E_MISMATCH, WEFT_RANK_NONE,
                        "%s; give each job a scheduler's address of its own", s->alike.refusal);
    return false;
}

/* Without memory it may still report how its process has ended. */
static void dismiss_launcher(wefti_scheduler *s, uint64_t launcher) {
    wefti_alike_state *a = &s->alike;
    if (WEFT_GROW(a->launchers, a->count, a->room) >= 0)
        a->launchers[a->count++] = (wefti_dismissed){launcher, wefti_strdup(a->refusal)};
    for (int32_t r = 0; r < s->options.size; r++)
        if (s->keeper[r] == launcher) s->keeper[r] = 0;
    for (int64_t i = 0; i < s->client_count; i++) {
        wefti_client *c = s->clients[i];
        if (c->state == WEFTI_CLIENT_OPEN && c->launcher.launcher == launcher)
            refuse_launcher(s, c, a->refusal);
    }
}

/* --- processes --- */

static bool is_own(const wefti_scheduler *s, const wefti_join *join) {
    return join->launcher && join->launcher == s->options.launcher;
}

static void refuse(wefti_scheduler *s, wefti_client *client, const wefti_join *join,
                   const char *difference) {
    wefti_alike_state *a = &s->alike;
    (void)snprintf(a->refusal, sizeof a->refusal,
                   "process %lld at %s is refused, as it runs something else than %s: %.600s",
                   (long long)join->pid, client->address, a->who, difference);
    wefti_client_refuse(s, client, WEFT_E_MISMATCH, WEFT_RANK_NONE,
                        "%s; processes of one job need the same; two jobs need schedulers' "
                        "addresses, or names (WEFT_JOB), of their own",
                        a->refusal);
    if (!is_own(s, join)) wefti_scheduler_note(s, "%s", a->refusal);
    if (join->launcher && !is_own(s, join)) dismiss_launcher(s, join->launcher);
}

/* Those that came before the scheduler's own, and run something else. */
static void dismiss_members(wefti_scheduler *s, const wefti_client *own) {
    wefti_identity first = s->alike.identity;
    s->alike.identity = (wefti_identity){0};
    for (int32_t i = s->taken - 1; i >= 0; i--) {
        wefti_client *client = s->slots[i].client;
        const wefti_identity *its = client->is_first ? &first : &client->identity;
        const wefti_join join = s->slots[i].join;
        wefti_text text = {0};
        if (!wefti_identity_compare(its, &own->identity, &text)) continue;
        wefti_scheduler_release_slot(s, i);
        client->slot = -1;
        refuse(s, client, &join, text.data ? text.data : "no memory for the difference");
        wefti_text_free(&text);
    }
    wefti_identity_free(&first);
}

static void call(wefti_scheduler *s, const wefti_client *client, const wefti_join *join) {
    const bool own = is_own(s, join);
    (void)snprintf(s->alike.who, sizeof s->alike.who, "process %lld at %s%s", (long long)join->pid,
                   client->address, own ? "" : ", which came first");
    s->alike.by = own ? WEFTI_ALIKE_OWN : WEFTI_ALIKE_FIRST;
}

/* Whether nobody else compares it. */
static bool is_to_compare(const wefti_scheduler *s, const wefti_join *join) {
    if (!s->alike.identity.bytes) return false;
    return s->state == WEFTI_SCHEDULER_FORMING || (!join->generation && !join->launcher);
}

bool wefti_alike_check(wefti_scheduler *s, wefti_client *client, const wefti_join *join) {
    wefti_text text = {0};
    if (!is_to_compare(s, join) ||
        !wefti_identity_compare(&client->identity, &s->alike.identity, &text))
        return true;
    const bool own =
        s->state == WEFTI_SCHEDULER_FORMING && is_own(s, join) && s->alike.by == WEFTI_ALIKE_FIRST;
    if (own) {
        call(s, client, join);
        dismiss_members(s, client);
    } else
        refuse(s, client, join, text.data ? text.data : "no memory for the difference");
    wefti_text_free(&text);
    return own;
}

void wefti_alike_seated(wefti_scheduler *s, wefti_client *client, const wefti_join *join) {
    wefti_identity *all = &s->alike.identity, *its = &client->identity;
    client->is_first =
        its->bytes > 0 &&
        (!all->bytes || (its->bytes == all->bytes && !memcmp(its->body, all->body, all->bytes)));
    if (!all->bytes) {
        *all = *its;
        *its = (wefti_identity){0};
        call(s, client, join);
    }
    if (client->is_first) wefti_identity_free(its);
}

void wefti_alike_complete(wefti_scheduler *s) {
    for (int32_t r = 0; r < s->taken; r++)
        if (s->slots[r].client) wefti_identity_free(&s->slots[r].client->identity);
}

weft_status wefti_alike_begin(wefti_scheduler *s) {
    WEFT_TRY(wefti_identity_encode(s->options.identity, &s->alike.identity));
    s->options.identity = NULL; /* the caller's */
    if (s->alike.identity.bytes) s->alike.by = WEFTI_ALIKE_HOST;
    (void)snprintf(s->alike.who, sizeof s->alike.who, "process %lld, which hosts the scheduler",
                   (long long)getpid());
    return WEFT_OK;
}

void wefti_alike_next_world(wefti_scheduler *s) {
    if (s->alike.by == WEFTI_ALIKE_HOST) return;
    wefti_identity_free(&s->alike.identity);
    s->alike.by = WEFTI_ALIKE_FIRST;
}

void wefti_alike_end(wefti_scheduler *s) {
    wefti_identity_free(&s->alike.identity);
    for (int64_t i = 0; i < s->alike.count; i++) wefti_free(s->alike.launchers[i].why);
    wefti_free(s->alike.launchers);
}
