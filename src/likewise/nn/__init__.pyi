from likewise.nn.convnet import ConvNet as ConvNet
from likewise.nn.efficientnet import EfficientNetLite0 as EfficientNetLite0
from likewise.nn.inception import InceptionBN as InceptionBN
from likewise.nn.named import NAMES as NAMES
from likewise.nn.named import named as named
from likewise.nn.network import Backbone as Backbone
from likewise.nn.resnet import ResNet50 as ResNet50
from likewise.nn.wrapped import as_backbone as as_backbone
