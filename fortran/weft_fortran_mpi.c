/* Worlds on communicators of MPI, for the Fortran module `weft`. */
#include <weft/mpi.h>

#include "weft_fortran.h"

weft_status weft_fortran_world_from_mpi(MPI_Fint comm, weft_world **out,
                                        const CFI_cdesc_t *communicator, const CFI_cdesc_t *links,
                                        const double *wait_seconds) {
    WEFT_FORTRAN_TEXT(name, communicator);
    WEFT_FORTRAN_TEXT(file, links);
    weft_world_options options =
        WEFT_STRUCT(weft_world_options, .communicator = name, .links = file);
    if (wait_seconds) options.wait_seconds = *wait_seconds;
    return weft_world_from_mpi(MPI_Comm_f2c(comm), &options, out);
}
