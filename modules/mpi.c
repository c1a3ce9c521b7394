/* The part of weft that is linked to an MPI: built once for each MPI that is there, as
 * weft-openmpi.so, weft-mpich.so, and loaded by src/launch/mpi_module.c when the mpirun of that MPI
 * started the process. It needs no symbol of libweft, which the `weft` command contains.
 *
 * MPI is initialised here unless the program did it before, with whatever level of threads there
 * is; and it is finalised with the world that it served, if we began it, unless ranks were lost:
 * then MPI_Finalize would wait for them for ever, and a process that ends without it makes mpirun
 * end the others. */
#include "weft/mpi.h"

#include "weft/version.h"

WEFT_API extern const char weft_module_version[];
const char weft_module_version[] = WEFT_VERSION;

static bool begun_here; /* as MPI itself, of the process */

static void part(void *context) {
    if (wefti_mpi_part((wefti_mpi *)context) && begun_here) (void)MPI_Finalize();
}

/* A transport over all processes of the job. `tell` is weft_error_raise. */
WEFT_API weft_status weft_module_transport(weft_status (*tell)(weft_status, const char *),
                                           weft_transport *out);
weft_status weft_module_transport(weft_status (*tell)(weft_status, const char *),
                                  weft_transport *out) {
    int begun = 0, over = 0, level;
    (void)MPI_Initialized(&begun);
    (void)MPI_Finalized(&over);
    if (over)
        return tell(WEFT_E_ARG, "MPI was finalised when the last world was left; a process can "
                                "join only one job of mpirun");
    if (!begun) {
        if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS)
            return tell(WEFT_E_PEER, "MPI_Init_thread failed");
        begun_here = true;
    }
    weft_status status = weft_mpi_transport(MPI_COMM_WORLD, tell, out);
    if (status >= 0) out->close = part;
    return status;
}
