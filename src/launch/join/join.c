/* Joining the job that this process was started for: see weft/world.h. */
#include "launch/join/join.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/join/mpi_module.h"

/* Launchers that have no scheduler of their own: rank 0 is its host. */
static weft_status serve(const wefti_join_plan *plan, const wefti_launcher *l,
                         const wefti_secret *secret, wefti_scheduler **out) {
    wefti_scheduler_site site = {.size = l->place.size,
                                 .host = l->scheduler_host,
                                 .interface = plan->set.interface,
                                 .port = l->scheduler_port,
                                 .job = l->job,
                                 .hosted_by = 0};
    wefti_scheduler_options o = wefti_scheduler_options_of(&plan->set, &site);
    o.secret = *secret;
    o.has_other = *plan->set.standby != '\0';
    o.identity = plan->identity;
    weft_status status = wefti_scheduler_start(&o, out);
    explicit_bzero(&o.secret, sizeof o.secret);
    return status;
}

static weft_status enter(const wefti_join_plan *plan, const wefti_launcher *l,
                         wefti_control *control) {
    char where[WEFTI_HOST_TEXT + 16], facts[WEFTI_JOIN_FACTS_TEXT];
    wefti_join_facts(plan, facts);
    wefti_identity identity = {0};
    (void)wefti_host_and_port(l->scheduler_host, l->scheduler_port, where, sizeof where);
    wefti_member_options o = {.scheduler = where,
                              .standby = plan->set.standby,
                              .interface = plan->set.interface,
                              .job = l->job,
                              .rank = l->added >= 0 ? l->added : l->place.rank,
                              .size = l->place.size > 0 ? l->place.size : -1,
                              .node = l->node_id,
                              .host = plan->set.host_id,
                              .facts = facts,
                              .tls = plan->set.tls,
                              .launcher = l->run,
                              .identity = &identity,
                              .join_seconds = plan->set.join_seconds,
                              .heartbeat_seconds = plan->set.heartbeat_seconds};
    WEFT_TRY(wefti_secret_find(plan->set.secret_file, plan->set.home, &o.secret, NULL));
    weft_status status = wefti_identity_encode(plan->identity, &identity);
    /* A rank 0 that is started again, after its job has gone to the standby, is a member. */
    if (status >= 0 && l->serves && !wefti_member_runs_at(&o, o.standby)) {
        status = serve(plan, l, &o.secret, &control->scheduler);
        if (status >= 0) o.scheduler = wefti_scheduler_address(control->scheduler);
    }
    if (status >= 0) status = wefti_member_join(&o, &control->member);
    explicit_bzero(&o.secret, sizeof o.secret);
    wefti_identity_free(&identity);
    return status;
}

static weft_status join_scheduler(const wefti_join_plan *plan, const wefti_launcher *l,
                                  weft_world **out) {
    WEFT_TRY(wefti_launcher_check_address(l));
    wefti_control *control;
    WEFT_NEW(control, wefti_control);
    weft_status status = enter(plan, l, control);
    if (status < 0)
        wefti_control_end(control);
    else
        status = wefti_join_assemble(plan, control, NULL, out);
    return status;
}

/* MPI has waited in vain: adds which ranks are not there. */
static weft_status tell_missing(const wefti_launcher *l, weft_status status) {
    char *missing = wefti_mpirun_missing(l);
    if (!missing) return status;
    wefti_failure why;
    wefti_failure_keep(status, &why);
    status = WEFT_RAISE(status, "%s; %.1000s", missing, why.message);
    wefti_free(missing);
    return status;
}

/* Joins through the MPI that started this process. */
static weft_status join_mpi(const wefti_join_plan *plan, const wefti_launcher *l,
                            const weft_world_options *options, weft_world **out) {
    double seconds = plan->set.join_seconds > 0 ? plan->set.join_seconds : 600;
    const char *flavour = l->open_mpi ? "openmpi" : "mpich";
    weft_transport transport;
    WEFT_TRY(wefti_mpirun_check(l));
    weft_status status = wefti_mpi_module_open(flavour, plan->set.module_path, seconds, &transport);
    if (status == WEFT_E_TIMEOUT) return tell_missing(l, status);
    WEFT_TRY(status);
    if (transport.size != l->place.size) {
        int size = transport.size;
        if (transport.close) transport.close(transport.context);
        WEFT_FAIL(WEFT_E_MISMATCH,
                  "%s says that the job has %d processes, but its MPI (%s) finds %d: the launcher "
                  "and the MPI do not know each other; set WEFT_SCHEDULER=HOST:PORT for all "
                  "processes, an address of rank 0's host, or start with the mpirun of that MPI",
                  l->place.name, l->place.size, flavour, size);
    }
    return wefti_join_transport(&transport, options, true, out);
}

/* Nothing would be left to mend. */
static weft_status check_restarts(const wefti_launcher *l) {
    const bool by_mpirun = l->start == WEFTI_START_OPEN_MPI || l->start == WEFTI_START_MPICH;
    WEFT_REQUIRE(!by_mpirun || !*l->set.standby, WEFT_E_ARG,
                 "WEFT_STANDBY is set, but %s started this process, and mpirun ends all processes "
                 "of its job with the first one that dies, the scheduler's among them; leave "
                 "WEFT_STANDBY out, or start the job with weft launch --standby %s",
                 l->place.name, l->set.standby);
    WEFT_REQUIRE(!by_mpirun || l->set.restarts == 0, WEFT_E_ARG,
                 "WEFT_RESTART is %d, but %s started this process, and mpirun ends all processes "
                 "of its job with the first one that dies; leave WEFT_RESTART out, or start the "
                 "job with weft launch --restart %d",
                 l->set.restarts, l->place.name, l->set.restarts);
    return WEFT_OK;
}

static weft_status join(const weft_world_options *options, const wefti_launcher *l,
                        weft_world **out) {
    wefti_join_plan plan;
    WEFT_TRY(wefti_join_options(options, &l->set, &plan));
    WEFT_REQUIRE(!l->is_scheduler, WEFT_E_ARG,
                 "MS_ROLE is MS_SCHED: this process is the scheduler of a job and no member of it");
    if (l->start == WEFTI_START_ALONE) return wefti_join_alone(NULL, out);
    WEFT_TRY(check_restarts(l));
    bool forced = strcmp(plan.set.communicator, "mpi") == 0;
    if (l->mpi && (forced || l->scheduler_port == 0)) return join_mpi(&plan, l, options, out);
    if (l->place.size == 1 && l->scheduler_port == 0) return wefti_join_alone(NULL, out);
    return join_scheduler(&plan, l, out);
}

weft_status weft_world_join(const weft_world_options *options, weft_world **out) {
    const int64_t begin = wefti_now_ns();
    wefti_launcher l;
    wefti_world_servers *servers;
    WEFT_TRY(wefti_launcher_find(&l));
    WEFT_TRY(wefti_join_servers(&l.set, &servers));
    const weft_status status = join(options, &l, out);
    if (status < 0) {
        wefti_free(servers);
        return status;
    }
    (*out)->servers = servers;
    (*out)->joining_ns = wefti_now_ns() - begin;
    return WEFT_OK;
}
