exec(open('benchmarks/probe.py').read().split("for B in map")[0])
import equipool.ops.resnet_gradient.triton as T
from equipool.ops.resnet_gradient.spec import Spec
from torch.profiler import profile, ProfilerActivity
import itertools
def bench(sizes, B, dtype, rows, warps, stages):
    g=torch.Generator().manual_seed(1)
    counts=torch.randint(13,40,(B,),generator=g); index=torch.arange(B).repeat_interleave(counts).to(dev); N=len(index)
    ws=[s+-s%8 for s in sizes]; H=sum(ws)
    shared=[torch.randn(N,H,device=dev),torch.randn(H,300,device=dev)/17]
    for j in range(len(sizes)-1): shared.append(torch.randn(sum(ws[j+1:]),ws[j],device=dev)*ws[j]**-.5)
    for _ in range(2):
        for s in sizes[:-1]: shared.append(torch.ones(s,device=dev))
    t=T.TritonGradient(Spec(tuple(sizes),.1,1e-5,dtype),shared,index,B)
    for l in t.layers[:-1]: l.launch=dict(l.launch,ROWS=rows,num_warps=warps,STAGES=stages)
    y=torch.randn(B,300,device=dev); v=torch.randn(B,300,device=dev)
    for _ in range(2): t.gradient(y); t.vjp(v,y)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        t.gradient(y); torch.cuda.synchronize()
    a={e.key:e.self_device_time_total for e in p.key_averages()}
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        t.vjp(v,y); torch.cuda.synchronize()
    b={e.key:e.self_device_time_total for e in p.key_averages()}
    return a['activate'],a['hidden_adjoint'],b['activate'],b['hidden_adjoints']
T.LARGEST_PART=10**9
for dtype in (torch.float32,torch.bfloat16):
    for sizes,block in (((600,32),1024),((16,300,32),512)):
        for rows,warps,stages in [(1,2,1),(1,4,1),(2,4,1),(1,2,2),(1,4,2),(2,4,2),(1,4,3),(4,4,1),(2,2,1)]:
            try: r=bench(sizes,2048,dtype,rows,warps,stages); print(dtype,sizes,rows,warps,stages,'act %4.0f adj %4.0f | act2 %4.0f adjs %4.0f us'%r,flush=True)
            except Exception as e: print(sizes,rows,warps,repr(e)[:100])
