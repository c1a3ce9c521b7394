/* What the Fortran module `weft` cannot say by itself: communicators of MPI, structures that are
 * passed by value, functions with any number of arguments. Compiled by the program's own mpicc and
 * linked beside weft.f90. Structures of weft's interface stay on this side, so that the module need
 * not know how they lie in memory. */
#include <weft/mpi.h>
#include <weft/weft.h>

weft_status weft_fortran_world_from_mpi(MPI_Fint comm, const char *communicator,
                                        double wait_seconds, weft_world **out);
weft_status weft_fortran_world_from_mpi(MPI_Fint comm, const char *communicator,
                                        double wait_seconds, weft_world **out) {
    weft_world_options options = {.communicator = communicator, .wait_seconds = wait_seconds};
    return weft_world_from_mpi(MPI_Comm_f2c(comm), &options, out);
}

/* --- graphs --- */

weft_value weft_fortran_input(weft_graph *g, const char *name, int dtype, int rank,
                              const int64_t *shape);
weft_value weft_fortran_input(weft_graph *g, const char *name, int dtype, int rank,
                              const int64_t *shape) {
    return weft_input(g, name, weft_desc_of((weft_dtype)dtype, rank, shape));
}

weft_value weft_fortran_param(weft_graph *g, const char *name, int dtype, int rank,
                              const int64_t *shape, int kind, double scale);
weft_value weft_fortran_param(weft_graph *g, const char *name, int dtype, int rank,
                              const int64_t *shape, int kind, double scale) {
    return weft_param(g, name, weft_desc_of((weft_dtype)dtype, rank, shape),
                      (weft_init){(weft_init_kind)kind, scale});
}

void weft_fortran_cell_begin(weft_graph *g, const char *name);
void weft_fortran_cell_begin(weft_graph *g, const char *name) {
    weft_cell_begin(g, "%s", name);
}

/* --- sessions --- */

typedef struct weft_fortran_options { /* as in weft.f90 */
    int32_t optimizer, decay_all, microbatches, keep_gradients, recompute, threads;
    double beta1, beta2, eps, momentum, weight_decay, clip;
    int64_t memory_bytes, seed;
} weft_fortran_options;

void weft_fortran_defaults(weft_fortran_options *out);
void weft_fortran_defaults(weft_fortran_options *out) {
    weft_session_options o = weft_session_defaults();
    *out = (weft_fortran_options){
        .optimizer = (int32_t)o.optimizer.kind,
        .decay_all = o.optimizer.decay_all,
        .microbatches = o.microbatches,
        .keep_gradients = o.keep_gradients,
        .recompute = o.recompute,
        .threads = o.threads,
        .beta1 = o.optimizer.beta1,
        .beta2 = o.optimizer.beta2,
        .eps = o.optimizer.eps,
        .momentum = o.optimizer.momentum,
        .weight_decay = o.optimizer.weight_decay,
        .clip = o.clip,
        .memory_bytes = o.memory_bytes,
        .seed = (int64_t)o.seed,
    };
}

weft_status weft_fortran_session_create(weft_graph *graph, const weft_fortran_options *from,
                                        const weft_plan *plan, weft_world *world,
                                        weft_session **out);
weft_status weft_fortran_session_create(weft_graph *graph, const weft_fortran_options *from,
                                        const weft_plan *plan, weft_world *world,
                                        weft_session **out) {
    weft_session_options o = weft_session_defaults();
    o.optimizer.kind = (weft_optimizer_kind)from->optimizer;
    o.optimizer.decay_all = from->decay_all != 0;
    o.optimizer.beta1 = from->beta1;
    o.optimizer.beta2 = from->beta2;
    o.optimizer.eps = from->eps;
    o.optimizer.momentum = from->momentum;
    o.optimizer.weight_decay = from->weight_decay;
    o.clip = from->clip;
    o.microbatches = from->microbatches;
    o.keep_gradients = from->keep_gradients != 0;
    o.recompute = from->recompute != 0;
    o.threads = from->threads;
    o.memory_bytes = from->memory_bytes;
    o.seed = (uint64_t)from->seed;
    o.plan = plan;
    o.world = world;
    return weft_session_create(graph, &o, out);
}
