/* Slurm: steps, and the lists of hosts and tasks in their variables. Source: srun(1), output
 * environment variables. */
#include "launch/env/reader.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "node[03-05,9],other", "a,b", "rack1node[2-4]": what stands before the first comma, with the
 * first number of each bracket. */
bool wefti_slurm_first_host(const char *list, char out[WEFTI_HOST_TEXT]) {
    int used = 0;
    bool inside = false, taken = false; /* within brackets; past their first number */
    for (const char *c = list; *c; c++) {
        if (*c == '[') {
            if (inside) return false;
            inside = true;
            taken = false;
        } else if (*c == ']') {
            if (!inside) return false;
            inside = false;
        } else if (inside && (*c == ',' || *c == '-')) {
            taken = true;
        } else if (!inside && *c == ',') {
            break;
        } else if (!inside || !taken) {
            if (!isgraph((unsigned char)*c) || used == WEFTI_HOST_TEXT - 1) return false;
            out[used++] = *c;
        }
    }
    out[used] = '\0';
    return used > 0 && !inside;
}

/* One item "TASKS(xNODES)" or "TASKS" at *at, which moves behind it and its comma. */
static bool next_tasks(const char **at, int *tasks, int *nodes) {
    char *end;
    if (!isdigit((unsigned char)**at)) return false;
    long count = strtol(*at, &end, 10), times = 1;
    if (end[0] == '(' && end[1] == 'x' && isdigit((unsigned char)end[2])) {
        times = strtol(end + 2, &end, 10);
        if (*end++ != ')') return false;
    }
    if (count < 0 || count > WEFTI_RANKS_MAX || times < 1 || times > WEFTI_RANKS_MAX) return false;
    if (*end == ',') end++;
    *at = end;
    *tasks = (int)count;
    *nodes = (int)times;
    return true;
}

int wefti_slurm_tasks_of(const char *list, int node) {
    int tasks, nodes, before = 0;
    while (list && next_tasks(&list, &tasks, &nodes)) {
        if (node >= before && node - before < nodes) return tasks;
        if (before > WEFTI_RANKS_MAX) return -1;
        before += nodes;
    }
    return -1;
}

bool wefti_slurm_one_task_each(const char *list) {
    int tasks, nodes;
    while (next_tasks(&list, &tasks, &nodes))
        if (tasks != 1) return false;
    return !*list;
}

/* A step that has tasks: the scripts of batch jobs and interactive shells have numbers of steps
 * from 0xfffffff0 on (slurm.h: SLURM_BATCH_SCRIPT, SLURM_INTERACTIVE_STEP), and SLURM_NTASKS there
 * is what was asked for. */
static weft_status read_slurm(wefti_env_reader *r) {
    wefti_claim *c = &r->claims[WEFTI_START_SLURM];
    wefti_claim_names n = wefti_source_slurm.names;
    const char *step = wefti_reader_get(r, "SLURM_STEP_ID");
    if (!step || !wefti_reader_get(r, "SLURM_PROCID")) return WEFT_OK;
    char *end;
    unsigned long id = strtoul(step, &end, 10);
    WEFT_REQUIRE(!*end && *step != '-', WEFT_E_ARG, "SLURM_STEP_ID is '%.40s', not a number", step);
    if (id >= 0xfffffff0UL) return WEFT_OK;
    if (!wefti_reader_get(r, n.size)) n.size = "SLURM_NTASKS";
    if (!wefti_reader_get(r, n.hosts)) n.hosts = "SLURM_NNODES";
    if (!wefti_reader_get(r, n.size)) return WEFT_OK;
    c->there = true;
    c->size_name = n.size;
    WEFT_TRY(wefti_reader_place(r, &n, c));
    const char *tasks = wefti_reader_get(r, "SLURM_STEP_TASKS_PER_NODE");
    if (!tasks) tasks = wefti_reader_get(r, "SLURM_TASKS_PER_NODE");
    if (tasks && c->place.host >= 0)
        c->place.local_size = wefti_slurm_tasks_of(tasks, c->place.host);
    if (c->place.local_rank >= c->place.local_size) c->place.local_size = -1;
    c->one_host = c->place.hosts == 1;
    c->carrier = c->place.size == 1 || c->place.size == c->place.hosts ||
                 (tasks && wefti_slurm_one_task_each(tasks));
    return WEFT_OK;
}

void wefti_slurm_address(const wefti_env_reader *r) {
    char text[160], *host = r->out->scheduler_host;
    const char *job = wefti_reader_get(r, "SLURM_JOB_ID"),
               *step = wefti_reader_get(r, "SLURM_STEP_ID");
    const char *nodes = wefti_reader_get(r, "SLURM_STEP_NODELIST");
    if (!nodes) nodes = wefti_reader_get(r, "SLURM_JOB_NODELIST");
    if (r->claims[WEFTI_START_SLURM].one_host)
        (void)snprintf(host, WEFTI_HOST_TEXT, "127.0.0.1");
    else if (!nodes || !wefti_slurm_first_host(nodes, host))
        return;
    (void)snprintf(text, sizeof text, "slurm %.60s.%.40s", job ? job : "", step);
    r->out->scheduler_port = wefti_port_of(text, strlen(text));
}

const wefti_launcher_source wefti_source_slurm = {
    .names = {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL,
              "SLURM_NODEID", "SLURM_STEP_NUM_NODES"},
    .read = read_slurm};
