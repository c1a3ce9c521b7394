/* Which launcher started this process (see the header): what each one says, which one counts, and
 * that all of them agree.
 *
 * Sources: torchrun, "Environment Variables" of its documentation; Open MPI, mpirun(1); hydra's
 * PMI; srun(1), output environment variables; Volcano, "Env plugin"; MindSpore, "Dynamic cluster
 * startup" and "Rank table startup". */
#include "launch/env/env.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launch/env/values.h"
#include "launch/env/volcano.h"
#include "launch/rank_table.h"

/* Which variables hold what. NULL: no such variable. */
typedef struct names {
    const char *launcher, *rank, *size, *local_rank, *local_size, *host, *hosts;
} names;

static const names known[WEFTI_START_ALONE] = {
    [WEFTI_START_WEFT] = {"weft launch", "WEFT_RANK", "WEFT_SIZE", "WEFT_LOCAL_RANK",
                          "WEFT_LOCAL_SIZE", "WEFT_HOST", "WEFT_HOSTS"},
    [WEFTI_START_OPEN_MPI] = {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                              "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", NULL,
                              NULL},
    [WEFTI_START_MPICH] = {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
                           NULL, NULL},
    [WEFTI_START_TORCHRUN] = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                              "GROUP_RANK", "GROUP_WORLD_SIZE"},
    [WEFTI_START_SLURM] = {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL,
                           "SLURM_NODEID", "SLURM_STEP_NUM_NODES"},
    [WEFTI_START_MINDSPORE] = {"MindSpore", "MS_NODE_ID", "MS_WORKER_NUM", NULL, NULL, NULL, NULL},
    [WEFTI_START_RANK_TABLE] = {"rank table", "RANK_ID", "RANK_SIZE", NULL, NULL, NULL, NULL},
    [WEFTI_START_VOLCANO] = {"Volcano", "VC_TASK_INDEX", NULL, NULL, NULL, NULL, NULL},
};

/* Those that number processes and do not say how many there are. Their numbers are ranks for who
 * has set WEFT_SIZE alike for all. */
static const names numbers_only[] = {
    {.launcher = "PMIx", .rank = "PMIX_RANK"},
    {.launcher = "an Indexed Job of Kubernetes", .rank = "JOB_COMPLETION_INDEX"},
    {.launcher = "Volcano", .rank = "VC_TASK_INDEX"},
    {.launcher = "Volcano", .rank = "VK_TASK_INDEX"}, /* the older name of the same */
};

const char *const wefti_launcher_variables[] = {"WEFT_RANK",
                                                "WEFT_SIZE",
                                                "WEFT_LOCAL_RANK",
                                                "WEFT_LOCAL_SIZE",
                                                "WEFT_HOST",
                                                "WEFT_HOSTS",
                                                "WEFT_NODE_ID",
                                                "WEFT_SCHEDULER",
                                                "WEFT_SECRET_FILE",
                                                "WEFT_LAUNCH",
                                                "WEFT_JOB",
                                                "OMPI_COMM_WORLD_RANK",
                                                "OMPI_COMM_WORLD_SIZE",
                                                "OMPI_COMM_WORLD_LOCAL_RANK",
                                                "OMPI_COMM_WORLD_LOCAL_SIZE",
                                                "PMIX_RANK",
                                                "PMIX_NAMESPACE",
                                                "JOB_COMPLETION_INDEX",
                                                "VC_TASK_INDEX",
                                                "VK_TASK_INDEX",
                                                "PMI_RANK",
                                                "PMI_SIZE",
                                                "PMI_FD",
                                                "MPI_LOCALRANKID",
                                                "MPI_LOCALNRANKS",
                                                "RANK",
                                                "WORLD_SIZE",
                                                "LOCAL_RANK",
                                                "LOCAL_WORLD_SIZE",
                                                "GROUP_RANK",
                                                "GROUP_WORLD_SIZE",
                                                "ROLE_RANK",
                                                "ROLE_WORLD_SIZE",
                                                "MASTER_ADDR",
                                                "MASTER_PORT",
                                                "SLURM_PROCID",
                                                "SLURM_LOCALID",
                                                "MS_ROLE",
                                                "MS_NODE_ID",
                                                "MS_WORKER_NUM",
                                                "MS_SCHED_HOST",
                                                "MS_SCHED_PORT",
                                                "RANK_TABLE_FILE",
                                                "MINDSPORE_HCCL_CONFIG_PATH",
                                                "RANK_ID",
                                                "RANK_SIZE",
                                                NULL};

/* What one launcher says. Names and values of rank and size are what messages show. */
typedef struct claim {
    bool there;
    bool carrier; /* a step of Slurm that other launchers run in, with one task per node */
    bool one_host;
    weft_launcher place;
    const char *rank_name, *size_name;
} claim;

typedef struct reader {
    wefti_variables v;
    const char *host_name;
    char volcano_size[WEFTI_VOLCANO_NAME + 16]; /* how messages call that */
    wefti_launcher *out;
    claim claims[WEFTI_START_ALONE];
} reader;

static const char *get(const reader *r, const char *name) {
    return wefti_variable(r->v, name);
}

static weft_status both(const reader *r, const char *one, const char *other) {
    WEFT_REQUIRE(!get(r, one) || get(r, other), WEFT_E_ARG, "%s is set, but %s is not", one, other);
    return WEFT_OK;
}

static weft_status number(const reader *r, const char *name, int min, int max, int *out) {
    return name ? wefti_variable_number(r->v, name, min, max, out) : WEFT_OK;
}

/* Rank and size among the numbers of `n`; what is not set stays -1, a missing size 0. */
static weft_status read_place(const reader *r, const names *n, claim *c) {
    weft_launcher *p = &c->place;
    WEFT_TRY(number(r, n->size, 1, WEFTI_RANKS_MAX, &p->size));
    WEFT_TRY(number(r, n->rank, 0, WEFTI_RANKS_MAX - 1, &p->rank));
    WEFT_TRY(number(r, n->local_rank, 0, WEFTI_RANKS_MAX - 1, &p->local_rank));
    WEFT_TRY(number(r, n->local_size, 1, WEFTI_RANKS_MAX, &p->local_size));
    WEFT_TRY(number(r, n->host, 0, WEFTI_RANKS_MAX - 1, &p->host));
    return number(r, n->hosts, 1, WEFTI_RANKS_MAX, &p->hosts);
}

/* A number that must be below another, where both are known. */
static weft_status below(const char *name, int value, const char *limit_name, int limit) {
    WEFT_REQUIRE(value < 0 || limit <= 0 || value < limit, WEFT_E_ARG,
                 "%s is %d, but %s is %d: it must be from 0 to %d", name, value, limit_name, limit,
                 limit - 1);
    return WEFT_OK;
}

static weft_status check_place(const names *n, const claim *c) {
    const weft_launcher *p = &c->place;
    WEFT_TRY(below(c->rank_name, p->rank, c->size_name, p->size));
    WEFT_TRY(below(n->local_rank, p->local_rank, n->local_size, p->local_size));
    WEFT_TRY(below(n->host, p->host, n->hosts, p->hosts));
    WEFT_REQUIRE(p->size <= 0 || p->local_size <= p->size, WEFT_E_ARG,
                 "%s is %d, more than %s, which is %d", n->local_size, p->local_size, c->size_name,
                 p->size);
    return WEFT_OK;
}

/* --- each launcher --- */

static weft_status read_numbered(reader *r, wefti_start start) {
    const names *n = &known[start];
    claim *c = &r->claims[start];
    if (!get(r, n->rank) && !get(r, n->size)) return WEFT_OK;
    WEFT_TRY(both(r, n->rank, n->size));
    if (start != WEFTI_START_WEFT) WEFT_TRY(both(r, n->size, n->rank));
    c->there = true;
    WEFT_TRY(read_place(r, n, c));
    if (c->place.local_size > 0) c->one_host = c->place.local_size == c->place.size;
    return WEFT_OK;
}

/* Its names are those of many other programs too: one of RANK and WORLD_SIZE alone says nothing,
 * unless the rest is torchrun's. */
static weft_status read_torchrun(reader *r) {
    bool rank = get(r, "RANK") != NULL, size = get(r, "WORLD_SIZE") != NULL;
    if (rank != size && !get(r, "MASTER_ADDR")) return WEFT_OK;
    return read_numbered(r, WEFTI_START_TORCHRUN);
}

/* A step that has tasks: the scripts of batch jobs and interactive shells have numbers of steps
 * from 0xfffffff0 on (slurm.h: SLURM_BATCH_SCRIPT, SLURM_INTERACTIVE_STEP), and SLURM_NTASKS there
 * is what was asked for. */
static weft_status read_slurm(reader *r) {
    claim *c = &r->claims[WEFTI_START_SLURM];
    names n = known[WEFTI_START_SLURM];
    const char *step = get(r, "SLURM_STEP_ID");
    if (!step || !get(r, "SLURM_PROCID")) return WEFT_OK;
    char *end;
    unsigned long id = strtoul(step, &end, 10);
    WEFT_REQUIRE(!*end && *step != '-', WEFT_E_ARG, "SLURM_STEP_ID is '%.40s', which is no number",
                 step);
    if (id >= 0xfffffff0UL) return WEFT_OK;
    if (!get(r, n.size)) n.size = "SLURM_NTASKS";
    if (!get(r, n.hosts)) n.hosts = "SLURM_NNODES";
    if (!get(r, n.size)) return WEFT_OK;
    c->there = true;
    c->size_name = n.size;
    WEFT_TRY(read_place(r, &n, c));
    const char *tasks = get(r, "SLURM_STEP_TASKS_PER_NODE");
    if (!tasks) tasks = get(r, "SLURM_TASKS_PER_NODE");
    if (tasks && c->place.host >= 0)
        c->place.local_size = wefti_slurm_tasks_of(tasks, c->place.host);
    if (c->place.local_rank >= c->place.local_size) c->place.local_size = -1;
    c->one_host = c->place.hosts == 1;
    c->carrier = c->place.size == 1 || c->place.size == c->place.hosts ||
                 (tasks && wefti_slurm_one_task_each(tasks));
    return WEFT_OK;
}

/* A text that is a whole number is one; -1 otherwise. */
static int whole(const char *text) {
    size_t digits = text ? strspn(text, "0123456789") : 0;
    return digits > 0 && digits < 8 && !text[digits] ? (int)strtol(text, NULL, 10) : -1;
}

/* msrun also sets RANK_ID and RANK_SIZE, which then are not those of a rank table. */
static weft_status read_msrun(reader *r, claim *c) {
    int rank = whole(get(r, "RANK_ID")), size = c->place.size;
    WEFT_TRY(number(r, "RANK_SIZE", 1, WEFTI_RANKS_MAX, &size));
    WEFT_REQUIRE(size == c->place.size, WEFT_E_ARG, "MS_WORKER_NUM is %d, but RANK_SIZE is %d",
                 c->place.size, size);
    if (rank < 0 || r->out->is_scheduler) return WEFT_OK;
    WEFT_REQUIRE(c->place.rank < 0 || c->place.rank == rank, WEFT_E_ARG,
                 "MS_NODE_ID is %d, but RANK_ID is %d", c->place.rank, rank);
    c->place.rank = rank;
    c->rank_name = "RANK_ID";
    return WEFT_OK;
}

static weft_status read_mindspore(reader *r) {
    claim *c = &r->claims[WEFTI_START_MINDSPORE];
    const char *role = get(r, "MS_ROLE");
    if (!role) return WEFT_OK;
    WEFT_REQUIRE(strcmp(role, "MS_PSERVER") != 0, WEFT_E_ARG,
                 "MS_ROLE is MS_PSERVER; jobs have MS_WORKER processes and one MS_SCHED");
    WEFT_REQUIRE(!strcmp(role, "MS_WORKER") || !strcmp(role, "MS_SCHED"), WEFT_E_ARG,
                 "MS_ROLE is '%.40s'; it can be MS_WORKER or MS_SCHED", role);
    WEFT_TRY(both(r, "MS_ROLE", "MS_WORKER_NUM"));
    WEFT_TRY(both(r, "MS_ROLE", "MS_SCHED_HOST"));
    WEFT_TRY(both(r, "MS_ROLE", "MS_SCHED_PORT"));
    c->there = true;
    r->out->is_scheduler = !strcmp(role, "MS_SCHED");
    WEFT_TRY(number(r, "MS_WORKER_NUM", 1, WEFTI_RANKS_MAX, &c->place.size));
    /* A whole number is the rank, any other text a name by whose order ranks are assigned. */
    int id = whole(get(r, "MS_NODE_ID"));
    if (id < c->place.size && !r->out->is_scheduler) c->place.rank = id;
    return read_msrun(r, c);
}

/* The table that two variables may name. NULL: none. */
static weft_status table_path(const reader *r, const char **out) {
    const char *file = get(r, "RANK_TABLE_FILE"), *config = get(r, "MINDSPORE_HCCL_CONFIG_PATH");
    WEFT_REQUIRE(!file || !config || !strcmp(file, config), WEFT_E_ARG,
                 "RANK_TABLE_FILE is %.200s, but MINDSPORE_HCCL_CONFIG_PATH is %.200s", file,
                 config);
    *out = file ? file : config;
    return WEFT_OK;
}

static void table_place(reader *r, const wefti_rank_table *t, claim *c) {
    weft_launcher *p = &c->place;
    p->size = t->size;
    p->hosts = t->server_count;
    if (p->rank >= 0 && p->rank < t->size) {
        p->host = t->ranks[p->rank].server;
        p->local_rank = p->rank - t->servers[p->host].first_rank;
        p->local_size = t->servers[p->host].devices;
    }
    c->one_host = t->server_count == 1;
    /* Where rank 0 is; on one host whatever the table calls it. */
    (void)snprintf(r->out->scheduler_host, sizeof r->out->scheduler_host, "%s",
                   c->one_host ? "127.0.0.1" : t->servers[0].address);
    r->out->scheduler_port = t->port;
}

static weft_status read_table(reader *r) {
    claim *c = &r->claims[WEFTI_START_RANK_TABLE];
    wefti_rank_table *table;
    const char *path = NULL;
    WEFT_TRY(table_path(r, &path));
    if (!path) return WEFT_OK;
    WEFT_REQUIRE(get(r, "RANK_ID"), WEFT_E_ARG,
                 "%s names a rank table, but RANK_ID is not set: which rank is this process?",
                 get(r, "RANK_TABLE_FILE") ? "RANK_TABLE_FILE" : "MINDSPORE_HCCL_CONFIG_PATH");
    c->there = true;
    WEFT_TRY(read_place(r, &known[WEFTI_START_RANK_TABLE], c));
    int told = c->place.size;
    WEFT_TRY(wefti_rank_table_load(path, &table));
    table_place(r, table, c);
    wefti_rank_table_free(table);
    WEFT_REQUIRE(told == 0 || told == c->place.size, WEFT_E_ARG,
                 "RANK_SIZE is %d, but the rank table %.200s has %d %s", told, path, c->place.size,
                 c->place.size == 1 ? "rank" : "ranks");
    if (told == 0) c->size_name = "the rank table's size";
    return WEFT_OK;
}

/* --- together --- */

static weft_status agree(const claim *a, const char *a_launcher, const claim *b,
                         const char *b_launcher) {
    static const char advice[] =
        "they belong to different launchers; unset those of the one that did not start this "
        "process";
    int rank = a->place.rank, other = b->place.rank;
    WEFT_REQUIRE(rank < 0 || other < 0 || rank == other, WEFT_E_ARG,
                 "%s is %d (%s), but %s is %d (%s): %s", a->rank_name, rank, a_launcher,
                 b->rank_name, other, b_launcher, advice);
    WEFT_REQUIRE(a->place.size == b->place.size, WEFT_E_ARG, "%s is %d (%s), but %s is %d (%s): %s",
                 a->size_name, a->place.size, a_launcher, b->size_name, b->place.size, b_launcher,
                 advice);
    return WEFT_OK;
}

/* A pair of numbers comes from one launcher: of two they need not fit. */
static void fill(int *rank, int *size, int other_rank, int other_size) {
    if (*rank >= 0 || *size >= 0) return;
    *rank = other_rank;
    *size = other_size;
}

/* The claim that counts: the first. A carrier counts only alone. */
static wefti_start choose(reader *r) {
    int there = 0;
    for (int s = 0; s < WEFTI_START_ALONE; s++) there += r->claims[s].there;
    claim *slurm = &r->claims[WEFTI_START_SLURM];
    if (slurm->there && slurm->carrier && there > 1) slurm->there = false;
    /* PMI of Slurm itself: it needs no MPI to find the others. */
    const claim *pmi = &r->claims[WEFTI_START_MPICH];
    if (pmi->there && slurm->there && !get(r, "MPI_LOCALRANKID") &&
        !r->claims[WEFTI_START_OPEN_MPI].there && !r->claims[WEFTI_START_WEFT].there)
        return WEFTI_START_SLURM;
    for (int s = 0; s < WEFTI_START_ALONE; s++)
        if (r->claims[s].there) return (wefti_start)s;
    return WEFTI_START_ALONE;
}

/* The number that this process has in its job; -1: none. *out_from: who says so. */
static weft_status only_number(const reader *r, int *out, const names **out_from) {
    *out = -1;
    *out_from = NULL;
    for (size_t i = 0; i < sizeof numbers_only / sizeof *numbers_only; i++) {
        const names *n = &numbers_only[i];
        int rank = -1;
        WEFT_TRY(number(r, n->rank, 0, WEFTI_RANKS_MAX - 1, &rank));
        if (rank < 0) continue;
        WEFT_REQUIRE(!*out_from || rank == *out, WEFT_E_ARG,
                     "%s is %d (%s), but %s is %d (%s): set WEFT_SIZE and WEFT_RANK",
                     (*out_from)->rank, *out, (*out_from)->launcher, n->rank, rank, n->launcher);
        *out = rank;
        *out_from = n;
    }
    return WEFT_OK;
}

/* Where several processes share a number (a pod that starts two), it is the rank of none. */
static bool shares_number(const reader *r, const weft_launcher *place) {
    return get(r, "WEFT_LAUNCH") || place->local_size > 1;
}

static weft_status number_alone(const reader *r) {
    weft_launcher *place = &r->out->place;
    const names *from;
    int rank;
    if (r->out->start != WEFTI_START_WEFT || shares_number(r, place)) return WEFT_OK;
    WEFT_TRY(only_number(r, &rank, &from));
    if (rank < 0) return WEFT_OK;
    WEFT_TRY(below(from->rank, rank, known[WEFTI_START_WEFT].size, place->size));
    place->rank = rank;
    return WEFT_OK;
}

/* Whether nobody else says which rank this is, and where all meet. */
static bool is_left_to_volcano(const reader *r) {
    const claim *own = &r->claims[WEFTI_START_WEFT];
    for (int s = 0; s < WEFTI_START_ALONE; s++)
        if (s != WEFTI_START_WEFT && r->claims[s].there) return false;
    if (get(r, "PMIX_RANK") || (!get(r, "VC_TASK_INDEX") && !get(r, "VK_TASK_INDEX"))) return false;
    bool sized = own->place.rank < 0 && own->place.size > 1 && !shares_number(r, &own->place);
    return !own->there || (sized && !get(r, "WEFT_SCHEDULER"));
}

/* An index alone says nothing, as in other jobs of Kubernetes: see check_alone. */
static weft_status read_volcano(reader *r) {
    claim *c = &r->claims[WEFTI_START_VOLCANO];
    weft_launcher *p = &c->place;
    wefti_volcano task;
    const names *from;
    if (!is_left_to_volcano(r) || !wefti_volcano_has_tasks(r->v)) return WEFT_OK;
    c->there = true;
    WEFT_TRY(only_number(r, &p->rank, &from));
    c->rank_name = from->rank;
    WEFT_TRY(wefti_volcano_find(r->v, from->rank, p->rank, r->host_name, &task));
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

static weft_status merge(reader *r) {
    wefti_launcher *out = r->out;
    out->mpi = r->claims[WEFTI_START_OPEN_MPI].there || r->claims[WEFTI_START_MPICH].there ||
               get(r, "PMIX_RANK");
    out->start = choose(r);
    if (out->start == WEFTI_START_ALONE) {
        out->place = (weft_launcher){NULL, 0, 1, 0, 1, 0, 1};
        return WEFT_OK;
    }
    const claim *chosen = &r->claims[out->start];
    out->place = chosen->place;
    out->place.name = known[out->start].launcher;
    out->one_host = chosen->one_host;
    for (int s = 0; s < WEFTI_START_ALONE; s++) {
        const claim *c = &r->claims[s];
        if (!c->there || c == chosen) continue;
        WEFT_TRY(agree(chosen, out->place.name, c, known[s].launcher));
        if (out->place.rank < 0) out->place.rank = c->place.rank;
        fill(&out->place.local_rank, &out->place.local_size, c->place.local_rank,
             c->place.local_size);
        fill(&out->place.host, &out->place.hosts, c->place.host, c->place.hosts);
        out->one_host = out->one_host || c->one_host;
    }
    if (out->place.rank < 0) WEFT_TRY(number_alone(r));
    if (out->is_scheduler) out->place.rank = -1;
    return WEFT_OK;
}

/* --- the scheduler's address, names, times --- */

static weft_status host_and_port(const reader *r, const char *host, const char *port) {
    int number_of = 0;
    if (!get(r, host) || !get(r, port)) return WEFT_OK;
    WEFT_TRY(wefti_variable_word(r->v, host, r->out->scheduler_host, WEFTI_HOST_TEXT));
    WEFT_TRY(number(r, port, 1, 65535, &number_of));
    r->out->scheduler_port = number_of;
    return WEFT_OK;
}

static void slurm_address(const reader *r) {
    char text[160], *host = r->out->scheduler_host;
    const char *job = get(r, "SLURM_JOB_ID"), *step = get(r, "SLURM_STEP_ID");
    const char *nodes = get(r, "SLURM_STEP_NODELIST");
    if (!nodes) nodes = get(r, "SLURM_JOB_NODELIST");
    if (r->claims[WEFTI_START_SLURM].one_host)
        (void)snprintf(host, WEFTI_HOST_TEXT, "127.0.0.1");
    else if (!nodes || !wefti_slurm_first_host(nodes, host))
        return;
    (void)snprintf(text, sizeof text, "slurm %.60s.%.40s", job ? job : "", step);
    r->out->scheduler_port = wefti_port_of(text, strlen(text));
}

/* From the weakest source to the strongest: later ones replace. The rank table's and Volcano's are
 * there. */
static weft_status read_address(reader *r) {
    const char *own = get(r, "WEFT_SCHEDULER");
    if (r->claims[WEFTI_START_SLURM].there) slurm_address(r);
    if (r->claims[WEFTI_START_MINDSPORE].there)
        WEFT_TRY(host_and_port(r, "MS_SCHED_HOST", "MS_SCHED_PORT"));
    bool mindspore = r->claims[WEFTI_START_MINDSPORE].there;
    if (r->claims[WEFTI_START_TORCHRUN].there || r->claims[WEFTI_START_OPEN_MPI].there ||
        r->claims[WEFTI_START_MPICH].there || r->claims[WEFTI_START_VOLCANO].there) {
        bool master = get(r, "MASTER_ADDR") && get(r, "MASTER_PORT");
        const char *store = get(r, "TORCHELASTIC_USE_AGENT_STORE");
        WEFT_TRY(host_and_port(r, "MASTER_ADDR", "MASTER_PORT"));
        /* torchrun itself listens there then. */
        if (master && store && !strcmp(store, "True"))
            r->out->scheduler_port += r->out->scheduler_port < 65535 ? 1 : -1;
        if (master) mindspore = false;
    }
    if (own) {
        WEFT_TRY(wefti_address_parse("WEFT_SCHEDULER", own, r->out->scheduler_host,
                                     &r->out->scheduler_port));
        mindspore = false;
    }
    bool has_scheduler = mindspore || get(r, "WEFT_LAUNCH");
    r->out->serves = r->out->place.rank == 0 && r->out->place.size > 1 &&
                     r->out->scheduler_port > 0 && !has_scheduler;
    /* Nobody is there to be met, but for a scheduler of its own. */
    if (r->out->place.size == 1 && !has_scheduler && !r->claims[WEFTI_START_MINDSPORE].there)
        r->out->scheduler_port = 0;
    return WEFT_OK;
}

static void read_job(const reader *r) {
    char *job = r->out->job;
    const char *run = get(r, "TORCHELASTIC_RUN_ID"), *id = get(r, "SLURM_JOB_ID");
    const char *own = get(r, "WEFT_JOB");
    if (own)
        (void)snprintf(job, WEFTI_HOST_TEXT, "%.200s", own);
    else if (r->out->start == WEFTI_START_TORCHRUN && run)
        (void)snprintf(job, WEFTI_HOST_TEXT, "torchrun %.200s", run);
    else if (r->out->start == WEFTI_START_SLURM && id)
        (void)snprintf(job, WEFTI_HOST_TEXT, "slurm %.100s.%.100s", id, get(r, "SLURM_STEP_ID"));
}

static weft_status read_words(reader *r) {
    wefti_launcher *o = r->out;
    double join = 0, heartbeat = 0;
    if (r->claims[WEFTI_START_MINDSPORE].there) {
        WEFT_TRY(wefti_variable_word(r->v, "MS_NODE_ID", o->node_id, sizeof o->node_id));
        WEFT_TRY(wefti_variable_seconds(r->v, "MS_TOPO_TIMEOUT", &join));
        WEFT_TRY(wefti_variable_seconds(r->v, "MS_NODE_TIMEOUT", &heartbeat));
    }
    WEFT_TRY(wefti_variable_word(r->v, "WEFT_NODE_ID", o->node_id, sizeof o->node_id));
    WEFT_TRY(wefti_settings_read(r->v, &o->set));
    if (!(o->set.join_seconds > 0)) o->set.join_seconds = join;
    if (!(o->set.heartbeat_seconds > 0)) o->set.heartbeat_seconds = heartbeat;
    return WEFT_OK;
}

/* Alone, or of a pod, although something was begun: better refused than N trainings of one. */
static weft_status check_alone(const reader *r) {
    bool alone = r->out->start == WEFTI_START_ALONE;
    if (!alone && r->out->start != WEFTI_START_VOLCANO) return WEFT_OK;
    WEFT_REQUIRE(!get(r, "MS_SCHED_HOST") || !get(r, "MS_WORKER_NUM"), WEFT_E_ARG,
                 "MS_SCHED_HOST and MS_WORKER_NUM are set, but MS_ROLE is not: MS_WORKER or "
                 "MS_SCHED");
    WEFT_REQUIRE(!get(r, "WEFT_LOCAL_RANK"), WEFT_E_ARG,
                 "WEFT_LOCAL_RANK is set, but WEFT_SIZE is not");
    WEFT_REQUIRE(!alone || !get(r, "WEFT_SCHEDULER"), WEFT_E_ARG,
                 "WEFT_SCHEDULER is set, but WEFT_SIZE is not");
    /* Others number tasks that are jobs of their own, too; PMIx only ranks. */
    WEFT_REQUIRE(!get(r, "PMIX_RANK"), WEFT_E_ARG,
                 "PMIX_RANK is set, but nothing says how many processes there are: set WEFT_SIZE "
                 "and WEFT_SCHEDULER for all of them, or unset PMIX_RANK");
    return WEFT_OK;
}

weft_status wefti_launcher_read(wefti_variables variables, const char *host_name,
                                wefti_launcher *out) {
    wefti_launcher found = {.start = WEFTI_START_ALONE};
    reader r = {.v = variables, .host_name = host_name, .out = &found};
    for (int s = 0; s < WEFTI_START_ALONE; s++) {
        r.claims[s].place = (weft_launcher){NULL, -1, 0, -1, -1, -1, -1};
        r.claims[s].rank_name = known[s].rank;
        r.claims[s].size_name = known[s].size;
    }
    WEFT_TRY(read_numbered(&r, WEFTI_START_WEFT));
    WEFT_TRY(read_numbered(&r, WEFTI_START_OPEN_MPI));
    WEFT_TRY(read_numbered(&r, WEFTI_START_MPICH));
    WEFT_TRY(read_torchrun(&r));
    WEFT_TRY(read_slurm(&r));
    WEFT_TRY(read_mindspore(&r));
    WEFT_TRY(read_table(&r));
    WEFT_TRY(read_volcano(&r));
    for (int s = 0; s < WEFTI_START_ALONE; s++) WEFT_TRY(check_place(&known[s], &r.claims[s]));
    WEFT_TRY(merge(&r));
    WEFT_TRY(read_address(&r));
    WEFT_TRY(read_words(&r));
    read_job(&r);
    WEFT_TRY(check_alone(&r));
    *out = found;
    return WEFT_OK;
}

static weft_status path_of(wefti_variables v, const char *name, char out[WEFTI_PATH_TEXT]) {
    const char *path = wefti_variable(v, name);
    size_t bytes = path ? strlen(path) : 0;
    WEFT_REQUIRE(bytes < WEFTI_PATH_TEXT, WEFT_E_ARG, "%s has %zu bytes; it may have %d", name,
                 bytes, WEFTI_PATH_TEXT - 1);
    if (path) memcpy(out, path, bytes + 1);
    return WEFT_OK;
}

weft_status wefti_settings_read(wefti_variables v, wefti_settings *out) {
    int tls = 0;
    *out = (wefti_settings){0};
    WEFT_TRY(wefti_variable_number(v, "WEFT_TLS", 0, 1, &tls));
    out->tls = tls == 1;
    WEFT_TRY(wefti_variable_word(v, "WEFT_COMM", out->communicator, sizeof out->communicator));
    WEFT_TRY(wefti_variable_word(v, "WEFT_INTERFACE", out->interface, sizeof out->interface));
    WEFT_TRY(wefti_variable_word(v, "WEFT_HOST_ID", out->host_id, sizeof out->host_id));
    WEFT_TRY(wefti_variable_seconds(v, "WEFT_JOIN_SECONDS", &out->join_seconds));
    WEFT_TRY(wefti_variable_seconds(v, "WEFT_HEARTBEAT_SECONDS", &out->heartbeat_seconds));
    WEFT_TRY(wefti_variable_seconds(v, "WEFT_WAIT_SECONDS", &out->wait_seconds));
    WEFT_TRY(path_of(v, "WEFT_SECRET_FILE", out->secret_file));
    WEFT_TRY(path_of(v, "WEFT_LINKS", out->links));
    return WEFT_OK;
}

static wefti_variables of_process(void) {
    static const char *const none[] = {NULL};
    return environ ? (wefti_variables)environ : none;
}

weft_status wefti_settings_find(wefti_settings *out) {
    return wefti_settings_read(of_process(), out);
}

weft_status wefti_launcher_find(wefti_launcher *out) {
    char host[WEFTI_HOST_TEXT] = "";
    if (gethostname(host, sizeof host - 1)) *host = '\0';
    return wefti_launcher_read(of_process(), host, out);
}

weft_status weft_launcher_find(weft_launcher *out) {
    wefti_launcher all;
    WEFT_TRY(wefti_launcher_find(&all));
    *out = all.place;
    return WEFT_OK;
}

weft_status wefti_launcher_check_address(const wefti_launcher *l) {
    WEFT_REQUIRE(l->scheduler_port > 0 || l->place.size <= 1, WEFT_E_ARG,
                 "%s started %d processes, but nothing says where they meet: set "
                 "WEFT_SCHEDULER=HOST:PORT, an address of rank 0's host",
                 l->place.name, l->place.size);
    return WEFT_OK;
}
