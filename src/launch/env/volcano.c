/* Jobs of Volcano: see env/volcano.h. Source: its "svc plugin" and "env plugin". */
#include "launch/env/reader.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char before[] = "VC_", after[] = "_HOSTS";
static const size_t first = sizeof before - 1, last = sizeof after - 1;

/* Whether a setting is a list of hosts: VC_<TASK>_HOSTS=..., in capitals. */
static bool is_task(wefti_variables v, const char *setting, wefti_volcano *out) {
    size_t length = strcspn(setting, "=");
    if (length <= first + last || length >= WEFTI_VOLCANO_NAME ||
        strncmp(setting, before, first) != 0 || strncmp(setting + length - last, after, last) != 0)
        return false;
    for (size_t i = first; i < length; i++)
        if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", setting[i])) return false;
    (void)snprintf(out->list_name, sizeof out->list_name, "%.*s", (int)length, setting);
    out->list = wefti_variable(v, out->list_name);
    return out->list == setting + length + 1; /* it has any, and is the first of its name */
}

/* Whether the plugin `svc` says anything. */
static bool has_tasks(wefti_variables v) {
    wefti_volcano any;
    for (wefti_variables at = v; *at; at++)
        if (is_task(v, *at, &any)) return true;
    return false;
}

static bool is_name(const char *text, size_t length) {
    if (length == 0 || length >= WEFTI_HOST_TEXT) return false;
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr("-._", text[i])) return false;
    return true;
}

/* Counts its hosts. */
static weft_status check_task(wefti_variables v, wefti_volcano *t) {
    char number_name[WEFTI_VOLCANO_NAME];
    int number = -1;
    const char *at = t->list;
    for (t->size = 0;; at++) {
        size_t length = strcspn(at, ",");
        WEFT_REQUIRE(is_name(at, length), WEFT_E_ARG,
                     "%s is '%.200s', in which number %d, counted from 0, is not a host name",
                     t->list_name, t->list, t->size);
        t->size++;
        at += length;
        if (!*at) break;
    }
    (void)snprintf(number_name, sizeof number_name, "%.*s_NUM", (int)(strlen(t->list_name) - last),
                   t->list_name);
    WEFT_TRY(wefti_variable_number(v, number_name, 0, WEFTI_RANKS_MAX, &number));
    WEFT_REQUIRE(number < 0 || number == t->size, WEFT_E_ARG,
                 "%s is %d, but %s has %d %s: '%.200s'", number_name, number, t->list_name, t->size,
                 t->size == 1 ? "host" : "hosts", t->list);
    return WEFT_OK;
}

/* Host names may be whole ("w-0.job.default.svc.cluster.local") or end sooner ("w-0"). */
static bool is_same_host(const char *text, size_t length, const char *host) {
    size_t own = strlen(host), shorter = own < length ? own : length;
    if (own == 0 || strncasecmp(text, host, shorter) != 0) return false;
    return own == length || (own < length ? text[own] : host[length]) == '.';
}

static bool has_host(const wefti_volcano *t, int index, const char *host) {
    const char *at = t->list;
    if (index >= t->size) return false;
    while (index-- > 0) at += strcspn(at, ",") + 1;
    return is_same_host(at, strcspn(at, ","), host);
}

static weft_status check_index(const wefti_volcano *t, const char *index_name, int index) {
    WEFT_REQUIRE(index < t->size, WEFT_E_ARG,
                 "%s is %d, but %s has %d %s, '%.200s': it must be from 0 to %d", index_name, index,
                 t->list_name, t->size, t->size == 1 ? "host" : "hosts", t->list, t->size - 1);
    return WEFT_OK;
}

/* Finds the task to which this pod belongs. `index` is the pod's number, from the variable
 * `index_name`. If there is one task, it is that one; else the task whose list has this host at
 * that number. There must be tasks. WEFT_E_ARG names variables and values if no task fits, or if a
 * list is malformed or has another length than its number says. */
static weft_status find_task(wefti_variables v, const char *index_name, int index,
                             const char *host_name, wefti_volcano *out) {
    wefti_volcano one = {.size = 0}, other = one, own = one;
    int tasks = 0, here = 0;
    for (wefti_variables at = v; *at; at++) {
        wefti_volcano t = {.size = 0};
        if (!is_task(v, *at, &t)) continue;
        WEFT_TRY(check_task(v, &t));
        if (tasks++ == 0)
            one = t;
        else
            other = t;
        if (has_host(&t, index, host_name) && here++ == 0) own = t;
    }
    WEFT_REQUIRE(tasks == 1 || here == 1, WEFT_E_ARG,
                 "%s is %d, and of the %d tasks in %s, %s%s %s this host, '%.80s', as number %d: "
                 "set WEFT_SIZE, WEFT_RANK and WEFT_SCHEDULER",
                 index_name, index, tasks, one.list_name, other.list_name,
                 tasks > 2 ? " and others" : "", here ? "several have" : "none has", host_name,
                 index);
    *out = tasks == 1 ? one : own;
    WEFT_TRY(check_index(out, index_name, index));
    (void)snprintf(out->first_host, sizeof out->first_host, "%.*s", (int)strcspn(out->list, ","),
                   out->list);
    return WEFT_OK;
}

/* Whether nobody else says which rank this is, and where all meet. */
static bool is_left_to_volcano(const wefti_env_reader *r) {
    const wefti_claim *own = &r->claims[WEFTI_START_WEFT];
    for (int s = 0; s < WEFTI_START_ALONE; s++)
        if (s != WEFTI_START_WEFT && r->claims[s].there) return false;
    if (wefti_reader_get(r, "PMIX_RANK") ||
        (!wefti_reader_get(r, "VC_TASK_INDEX") && !wefti_reader_get(r, "VK_TASK_INDEX")))
        return false;
    bool sized = own->place.rank < 0 && own->place.size > 1 && !wefti_shares_number(r, &own->place);
    return !own->there || (sized && !wefti_reader_get(r, "WEFT_SCHEDULER"));
}

/* An index alone says nothing, as in other jobs of Kubernetes: see check_alone. */
static weft_status read_volcano(wefti_env_reader *r) {
    wefti_claim *c = &r->claims[WEFTI_START_VOLCANO];
    weft_launcher *p = &c->place;
    wefti_volcano task;
    const wefti_claim_names *from;
    if (!is_left_to_volcano(r) || !has_tasks(r->v)) return WEFT_OK;
    c->there = true;
    WEFT_TRY(wefti_process_number(r, &p->rank, &from));
    c->rank_name = from->rank;
    WEFT_TRY(find_task(r->v, from->rank, p->rank, r->host_name, &task));
    (void)snprintf(r->volcano_size, sizeof r->volcano_size, "the number of %s", task.list_name);
    c->size_name = r->volcano_size;
    p->size = task.size;
    p->local_rank = 0;
    p->local_size = 1;
    p->host = p->rank;
    p->hosts = p->size;
    /* The same for all pods; two jobs of a node's own network are told apart. */
    memcpy(r->out->scheduler_host, task.first_host, sizeof task.first_host);
    r->out->scheduler_port = wefti_port_of(task.first_host, strlen(task.first_host));
    return WEFT_OK;
}

const wefti_launcher_source wefti_source_volcano = {
    .names = {"Volcano", "VC_TASK_INDEX", NULL, NULL, NULL, NULL, NULL}, .read = read_volcano};
