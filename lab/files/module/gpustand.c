// Stand-in for a GPU driver's kernel module: a real out-of-tree module, built for one kernel only.
#include <linux/module.h>

static int __init gpustand_init(void)
{
	return 0;
}

static void __exit gpustand_exit(void)
{
}

module_init(gpustand_init);
module_exit(gpustand_exit);
MODULE_LICENSE("GPL");
MODULE_VERSION("580.126.09");
MODULE_DESCRIPTION("stand-in for a GPU driver (rigbook's VM tests)");
