/* MPI for processes that are not linked to any: the module of the MPI whose mpirun started us. */
#ifndef WEFTI_MPI_MODULE_H
#define WEFTI_MPI_MODULE_H

#include "weft/transport.h"

/* Messages between all processes of the job, by weft-<flavour>.so; flavour "openmpi" or "mpich".
 * Collective over the job. WEFT_E_NOT_FOUND when there is no such module; the message says where it
 * was looked for; WEFT_E_TIMEOUT when others of the job have not come within `seconds`. The caller
 * compares out->size with what the launcher promised: an MPI that does not know its launcher begins
 * a job of one process each. */
weft_status wefti_mpi_module_open(const char *flavour, double seconds,
                                  weft_transport *out) WEFT_CHECKED;

#endif
