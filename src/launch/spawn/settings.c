/* The environment of processes: this one's, less what other launchers told it, and what
 * src/launch/env reads on the other side. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "launch/spawn/launch.h"

typedef struct list {
    const wefti_launch *of;
    char **items;
    int64_t count, capacity; /* room for all: see wefti_launch_settings */
    bool failed;             /* no memory */
} list;

/* Whether two settings are of one variable. */
static bool is_same_name(const char *setting, const char *other) {
    size_t length = strcspn(setting, "=");
    return strncmp(setting, other, length) == 0 && (other[length] == '=' || !other[length]);
}

/* Of one variable the first setting counts. */
static void add(list *to, char *setting) {
    for (int64_t i = 0; i < to->count && setting; i++)
        if (is_same_name(setting, to->items[i])) return;
    if (!setting || to->count == to->capacity)
        to->failed = true;
    else
        to->items[to->count++] = setting;
}

static void add_text(list *to, const char *name, const char *value) {
    add(to, wefti_arena_format(to->of->arena, "%s=%s", name, value));
}
static void add_number(list *to, const char *name, int value) {
    add(to, wefti_arena_format(to->of->arena, "%s=%d", name, value));
}
static void add_seconds(list *to, const char *name, double value) {
    char text[32];
    if (value > 0) add_text(to, name, wefti_real_text(fmin(value, 1e8), 9, 9, text));
}

static bool is_of_launcher(const char *setting) {
    for (const char *const *name = wefti_launcher_variables; *name; name++)
        if (is_same_name(setting, *name)) return true;
    return false;
}

static void add_place(list *to, int local) {
    const wefti_launch_place *p = &to->of->place;
    add_number(to, "WEFT_LAUNCH", 1);
    const bool adds = to->of->options->add; /* it has a number, and gets its rank as it joins */
    add_number(to, adds ? "WEFT_ADDED" : "WEFT_RANK", p->first_rank + local);
    add_number(to, "WEFT_SIZE", p->size);
    add_number(to, "WEFT_LOCAL_RANK", local);
    add_number(to, "WEFT_LOCAL_SIZE", p->count);
    if (!adds) add_number(to, "WEFT_HOST", p->host);
    if (!adds) add_number(to, "WEFT_HOSTS", p->hosts);
    add_text(to, "WEFT_SCHEDULER", to->of->scheduler_text);
    if (*to->of->set.standby) add_text(to, "WEFT_STANDBY", to->of->set.standby);
    if (*to->of->set.job) add_text(to, "WEFT_JOB", to->of->set.job);
    if (to->of->server_list) add_text(to, "WEFT_SERVERS", to->of->server_list);
    add_text(to, "WEFT_SECRET_FILE", to->of->secret);
}

static void add_options(list *to) {
    const weft_launch_options *o = to->of->options;
    for (const char *const *s = o->settings; s && *s; s++)
        add(to, wefti_arena_strdup(to->of->arena, *s));
    add_seconds(to, "WEFT_JOIN_SECONDS", o->join_seconds);
    add_seconds(to, "WEFT_HEARTBEAT_SECONDS", o->heartbeat_seconds);
    add_seconds(to, "WEFT_WAIT_SECONDS", o->wait_seconds);
    if (o->interface && *o->interface) add_text(to, "WEFT_INTERFACE", o->interface);
    if (to->of->set.tls) add_number(to, "WEFT_TLS", 1);
}

/* The mark comes first, so that a search finds it within the first bytes. */
static list begin(const wefti_launch *l) {
    enum { OWN = 23 };
    list to = {.of = l, .capacity = OWN};
    for (char **e = environ; *e; e++) to.capacity++;
    for (const char *const *s = l->options->settings; s && *s; s++) to.capacity++;
    to.items = wefti_arena_alloc(l->arena, (size_t)(to.capacity + 1) * sizeof *to.items);
    if (to.items)
        add(&to, wefti_arena_strdup(l->arena, l->mark));
    else
        to.failed = true;
    return to;
}

static weft_status end(list *to, char ***out) {
    WEFT_REQUIRE(!to->failed, WEFT_E_NOMEM, "no memory for an environment");
    *out = to->items;
    return WEFT_OK;
}

weft_status wefti_launch_settings(const wefti_launch *l, int local, char ***out) {
    list to = begin(l);
    if (!to.failed) add_place(&to, local);
    if (!to.failed) add_options(&to);
    for (char **e = environ; *e && !to.failed; e++)
        if (!is_of_launcher(*e)) add(&to, *e);
    return end(&to, out);
}

weft_status wefti_launch_server_settings(const wefti_launch *l, char ***out) {
    list to = begin(l);
    if (!to.failed) add_text(&to, "WEFT_SECRET_FILE", l->secret);
    if (!to.failed) add_options(&to);
    for (char **e = environ; *e && !to.failed; e++)
        if (!is_of_launcher(*e)) add(&to, *e);
    return end(&to, out);
}

weft_status wefti_launch_hook_settings(const wefti_launch *l, const wefti_hook_facts *facts,
                                       char ***out) {
    list to = begin(l);
    if (!to.failed) {
        add_text(&to, "WEFT_RESTART_JOB", facts->job);
        if (facts->rank < 0)
            add_text(&to, "WEFT_RESTART_RANK", "all");
        else
            add_number(&to, "WEFT_RESTART_RANK", facts->rank);
        add_number(&to, "WEFT_RESTART_HOST", l->place.host);
        add_text(&to, "WEFT_RESTART_REASON", facts->reason);
        add_number(&to, "WEFT_RESTART_COUNT", (int)facts->count);
    }
    for (char **e = environ; *e && !to.failed; e++) add(&to, *e);
    return end(&to, out);
}
