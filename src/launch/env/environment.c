/* The place of this process in its job, as its environment says: env/env.h. */
#include "launch/env/reader.h"
#include "launch/socket.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const wefti_launcher_source *const wefti_launchers[WEFTI_START_ALONE] = {
    [WEFTI_START_WEFT] = &wefti_source_weft,
    [WEFTI_START_OPEN_MPI] = &wefti_source_open_mpi,
    [WEFTI_START_MPICH] = &wefti_source_mpich,
    [WEFTI_START_TORCHRUN] = &wefti_source_torchrun,
    [WEFTI_START_SLURM] = &wefti_source_slurm,
    [WEFTI_START_MINDSPORE] = &wefti_source_mindspore,
    [WEFTI_START_RANK_TABLE] = &wefti_source_rank_table,
    [WEFTI_START_VOLCANO] = &wefti_source_volcano,
};

const char *const wefti_launcher_variables[] = {"WEFT_RANK",
                                                "WEFT_ADDED",
                                                "WEFT_SIZE",
                                                "WEFT_LOCAL_RANK",
                                                "WEFT_LOCAL_SIZE",
                                                "WEFT_HOST",
                                                "WEFT_HOSTS",
                                                "WEFT_NODE_ID",
                                                "WEFT_SCHEDULER",
                                                "WEFT_STANDBY",
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

static weft_status check_place(const wefti_claim_names *n, const wefti_claim *c) {
    const weft_launcher *p = &c->place;
    WEFT_TRY(wefti_reader_below(c->rank_name, p->rank, c->size_name, p->size));
    WEFT_TRY(wefti_reader_below(n->local_rank, p->local_rank, n->local_size, p->local_size));
    WEFT_TRY(wefti_reader_below(n->host, p->host, n->hosts, p->hosts));
    WEFT_REQUIRE(p->size <= 0 || p->local_size <= p->size, WEFT_E_ARG,
                 "%s is %d, more than %s, which is %d", n->local_size, p->local_size, c->size_name,
                 p->size);
    return WEFT_OK;
}

static void read_job(const wefti_env_reader *r) {
    char *job = r->out->job;
    const char *run = wefti_reader_get(r, "TORCHELASTIC_RUN_ID"),
               *id = wefti_reader_get(r, "SLURM_JOB_ID");
    const char *own = wefti_reader_get(r, "WEFT_JOB");
    if (own)
        (void)snprintf(job, WEFTI_HOST_TEXT, "%.200s", own);
    else if (r->out->start == WEFTI_START_TORCHRUN && run)
        (void)snprintf(job, WEFTI_HOST_TEXT, "torchrun %.200s", run);
    else if (r->out->start == WEFTI_START_SLURM && id)
        (void)snprintf(job, WEFTI_HOST_TEXT, "slurm %.100s.%.100s", id,
                       wefti_reader_get(r, "SLURM_STEP_ID"));
}

/* A word of its own: anything else is no number of a launcher. */
static void read_run(const wefti_env_reader *r) {
    const char *run = wefti_reader_get(r, "WEFT_RUN");
    if (r->out->start != WEFTI_START_WEFT || !run || strlen(run) != 16) return;
    if (strspn(run, "0123456789abcdef") == 16) r->out->run = strtoull(run, NULL, 16);
}

static weft_status read_words(wefti_env_reader *r) {
    wefti_launcher *o = r->out;
    read_run(r);
    double join = 0, heartbeat = 0;
    if (r->claims[WEFTI_START_MINDSPORE].there) {
        WEFT_TRY(wefti_variable_word(r->v, "MS_NODE_ID", o->node_id, sizeof o->node_id));
        WEFT_TRY(wefti_variable_seconds(r->v, "MS_TOPO_TIMEOUT", &join));
        WEFT_TRY(wefti_variable_seconds(r->v, "MS_NODE_TIMEOUT", &heartbeat));
    }
    WEFT_TRY(wefti_variable_word(r->v, "WEFT_NODE_ID", o->node_id, sizeof o->node_id));
    WEFT_TRY(
        wefti_variable_number(r->v, "WEFT_ADDED", o->place.size, WEFTI_RANKS_MAX - 1, &o->added));
    WEFT_TRY(wefti_settings_read(r->v, &o->set));
    if (r->claims[WEFTI_START_MINDSPORE].there) WEFT_TRY(wefti_mindspore_recovery(r));
    if (!(o->set.join_seconds > 0)) o->set.join_seconds = join;
    if (!(o->set.heartbeat_seconds > 0)) o->set.heartbeat_seconds = heartbeat;
    return WEFT_OK;
}

/* Alone, or of a pod, although something was begun: better refused than N trainings of one. */
static weft_status check_alone(const wefti_env_reader *r) {
    bool alone = r->out->start == WEFTI_START_ALONE;
    if (!alone && r->out->start != WEFTI_START_VOLCANO) return WEFT_OK;
    WEFT_REQUIRE(!wefti_reader_get(r, "MS_SCHED_HOST") || !wefti_reader_get(r, "MS_WORKER_NUM"),
                 WEFT_E_ARG,
                 "MS_SCHED_HOST and MS_WORKER_NUM are set, but MS_ROLE is not: MS_WORKER or "
                 "MS_SCHED");
    WEFT_REQUIRE(!wefti_reader_get(r, "WEFT_LOCAL_RANK"), WEFT_E_ARG,
                 "WEFT_LOCAL_RANK is set, but WEFT_SIZE is not");
    WEFT_REQUIRE(!alone || !wefti_reader_get(r, "WEFT_SCHEDULER"), WEFT_E_ARG,
                 "WEFT_SCHEDULER is set, but WEFT_SIZE is not");
    /* Others number tasks that are jobs of their own, too; PMIx only ranks. */
    WEFT_REQUIRE(!wefti_reader_get(r, "PMIX_RANK"), WEFT_E_ARG,
                 "PMIX_RANK is set, but nothing says how many processes there are: set WEFT_SIZE "
                 "and WEFT_SCHEDULER for all of them, or unset PMIX_RANK");
    return WEFT_OK;
}

weft_status wefti_launcher_read(wefti_variables variables, const char *host_name,
                                wefti_launcher *out) {
    wefti_launcher found = {.start = WEFTI_START_ALONE, .pmi_fd = -1, .added = -1};
    wefti_env_reader r = {.v = variables, .host_name = host_name, .out = &found};
    for (int s = 0; s < WEFTI_START_ALONE; s++) {
        r.claims[s].place = (weft_launcher){NULL, -1, 0, -1, -1, -1, -1};
        r.claims[s].rank_name = wefti_launchers[s]->names.rank;
        r.claims[s].size_name = wefti_launchers[s]->names.size;
    }
    for (int s = 0; s < WEFTI_START_ALONE; s++) WEFT_TRY(wefti_launchers[s]->read(&r));
    for (int s = 0; s < WEFTI_START_ALONE; s++)
        WEFT_TRY(check_place(&wefti_launchers[s]->names, &r.claims[s]));
    WEFT_TRY(wefti_claims_merge(&r));
    WEFT_TRY(wefti_read_address(&r));
    WEFT_TRY(read_words(&r));
    read_job(&r);
    WEFT_TRY(check_alone(&r));
    *out = found;
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

const char *weft_launcher_note(int number) {
    return wefti_launcher_note(of_process(), number);
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

weft_status wefti_scheduler_named(char out[WEFTI_PLACE_TEXT]) {
    const char *own = wefti_variable(of_process(), "WEFT_SCHEDULER");
    wefti_launcher all;
    char host[WEFTI_HOST_TEXT];
    int port;
    *out = '\0';
    if (own) {
        WEFT_TRY(wefti_address_parse("WEFT_SCHEDULER", own, host, &port));
    } else {
        WEFT_TRY(wefti_launcher_find(&all));
        (void)snprintf(host, sizeof host, "%s", all.scheduler_host);
        port = all.scheduler_port;
    }
    if (port > 0) (void)wefti_host_and_port(host, port, out, WEFTI_PLACE_TEXT);
    return WEFT_OK;
}

weft_status wefti_standby_named(char out[WEFTI_PLACE_TEXT]) {
    const char *own = wefti_variable(of_process(), "WEFT_STANDBY");
    *out = '\0';
    if (!own) return WEFT_OK;
    WEFT_TRY(wefti_standby_address_check("WEFT_STANDBY", own, ""));
    (void)snprintf(out, WEFTI_PLACE_TEXT, "%s", own);
    return WEFT_OK;
}
