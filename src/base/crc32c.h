/* CRC32C (Castagnoli polynomial 0x1EDC6F41, reflected), the checksum of everything that a
 * checkpoint holds. Source of the parameters: RFC 3720, section 12.1 and appendix B.4. Processors
 * with SSE4.2 compute it at the speed of memory; the choice is made at run time. */
#ifndef WEFTI_BASE_CRC32C_H
#define WEFTI_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of what `crc` covered followed by `data`; start with 0. */
uint32_t wefti_crc32c(uint32_t crc, const void *data, size_t bytes);
/* The same without special instructions: the oracle of the tests. */
uint32_t wefti_crc32c_plain(uint32_t crc, const void *data, size_t bytes);

#endif
